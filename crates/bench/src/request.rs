//! What is asked for: `NAME:KEY=VALUE,...`, with several values of one key for a series.

use crate::catalogue::{Entry, catalogue, groups};
use crate::flow::Workload;
use crate::parameters::{Parameters, published};

/// A value as it is asked for: behind a `~` it is a published number of files or bytes, which the scale is for. Who reads a report finds
/// there what was worked on.
fn resolved(entry: &Entry, key: &str, value: &str, scale: f64) -> Result<String, String> {
    let Some(text) = value.strip_prefix('~') else { return Ok(value.to_string()) };
    let scaled = published(key, text, scale).map_err(|error| format!("{}: {error}", entry.name))?;
    Ok(scaled.to_string())
}

/// The workloads that a request names: an entry of the catalogue, with parameters, or a group of entries. `scale` is how much of
/// the published number of files or bytes they work on, where the request does not say it.
pub fn workloads(request: &str, scale: f64) -> Result<Vec<Workload>, String> {
    let (name, parameters) = request.split_once(':').unwrap_or((request, ""));
    if let Some((_, _, members)) = groups().iter().find(|(group, _, _)| *group == name) {
        if !parameters.is_empty() {
            return Err(format!(
                "{name} is a group of workloads and has no parameters: name one of {}",
                members.join(" ")
            ));
        }
        return members.iter().try_fold(Vec::new(), |mut all, member| {
            all.extend(workloads(member, scale)?);
            Ok(all)
        });
    }
    let entry = catalogue().iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = catalogue().iter().map(|entry| entry.name).collect();
        format!("there is no workload '{name}': there are {}", names.join(", "))
    })?;
    let mut given: Vec<(&'static str, Vec<String>)> = Vec::new();
    for part in parameters.split(',').filter(|part| !part.is_empty()) {
        let (key, values) = part.split_once('=').ok_or(format!("{name}: '{part}' is no KEY=VALUE"))?;
        let known = entry.parameters.iter().find(|(known, _)| *known == key).ok_or_else(|| {
            let keys: Vec<&str> = entry.parameters.iter().map(|(key, _)| *key).collect();
            format!("{name} has no parameter '{key}': it has {}", keys.join(", "))
        })?;
        if given.iter().any(|(key, _)| *key == known.0) {
            return Err(format!("{name}: {key} is given twice"));
        }
        let values = values.split('/').map(|value| resolved(entry, key, value, scale));
        given.push((known.0, values.collect::<Result<_, _>>()?));
    }
    combinations(&given).iter().map(|chosen| build(entry, chosen, &given, scale)).collect()
}

/// Every choice of one value for each key, the last key's changing fastest.
fn combinations(given: &[(&'static str, Vec<String>)]) -> Vec<Vec<(&'static str, String)>> {
    given.iter().fold(vec![Vec::new()], |all, (key, values)| {
        let with = |chosen: &Vec<(&'static str, String)>| {
            let chosen = chosen.clone();
            values
                .iter()
                .map(move |value| [chosen.as_slice(), &[(*key, value.clone())]].concat())
                .collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    })
}

fn build(
    entry: &Entry,
    chosen: &[(&'static str, String)],
    given: &[(&'static str, Vec<String>)],
    scale: f64,
) -> Result<Workload, String> {
    let value = |key: &'static str, otherwise: &str| {
        let asked = chosen.iter().find(|(asked, _)| *asked == key);
        (key, asked.map_or(otherwise.to_string(), |(_, value)| value.clone()))
    };
    let parameters = Parameters {
        values: entry.parameters.iter().map(|(key, otherwise)| value(key, otherwise)).collect(),
        given: chosen.iter().map(|(key, _)| *key).collect(),
        scale,
    };
    let told = |error: String| format!("{}: {error}", entry.name);
    let mut workload = (entry.build)(&parameters).map_err(told)?;
    let texts: Vec<String> = chosen.iter().map(|(key, value)| format!("{key}={value}")).collect();
    workload.name =
        [entry.name].into_iter().chain(texts.first().map(|_| ":")).collect::<String>() + &texts.join(",");
    // A series differs in one number; of several keys with several values, the last is it.
    let varying = given.iter().rev().find(|(_, values)| values.len() > 1);
    workload.varies = varying.and_then(|(key, _)| Some((key.to_string(), parameters.place(key)?)));
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_and_group_can_be_built_at_any_scale() {
        for scale in [0.001, 0.1, 1.0] {
            for entry in catalogue() {
                let built = workloads(entry.name, scale).unwrap();
                assert_eq!((built.len(), built[0].name.as_str()), (1, entry.name));
            }
            for (group, _, _) in groups() {
                assert!(!workloads(group, scale).unwrap().is_empty(), "{group}");
            }
        }
    }

    #[test]
    fn values_make_a_series() {
        let built = workloads("read:io=64/4K/1M,threads=1/2", 0.1).unwrap();
        assert_eq!(built.len(), 6);
        assert_eq!(built[0].name, "read:io=64,threads=1");
        assert_eq!(built[5].name, "read:io=1M,threads=2");
        assert_eq!(built[5].varies, Some(("threads".to_string(), 2.0)));
        let built = workloads("write:io=64/4K", 0.1).unwrap();
        assert_eq!(built[1].varies, Some(("io".to_string(), 4096.0)));
        let built = workloads("fs_mark:sync=0/4", 0.1).unwrap();
        assert_eq!(built[0].varies, Some(("sync".to_string(), 0.0)), "none is a value like others");
    }

    #[test]
    fn what_was_asked_for_is_not_scaled() {
        assert_eq!(workloads("varmail", 0.1).unwrap()[0].set.files, 100);
        assert_eq!(workloads("varmail:files=777", 0.1).unwrap()[0].set.files, 777);
    }

    #[test]
    fn what_was_asked_for_as_published_is_scaled_and_named_as_it_is() {
        let built = workloads("varmail:files=~10K,width=50", 0.01).unwrap();
        assert_eq!((built[0].set.files, built[0].name.as_str()), (102, "varmail:files=102,width=50"));
        assert_eq!(workloads("varmail:files=~30", 0.01).unwrap()[0].set.files, 20, "no fewer than this");
        assert_eq!(workloads("read:size=~1G", 0.5).unwrap()[0].name, "read:size=536870912");
        let group = workloads("fsmac", 0.01).unwrap();
        assert_eq!(group[0].name, "createfiles:files=2000,threads=4");
        assert!(group.iter().all(|workload| !workload.name.contains('~')));
    }

    #[test]
    fn wrong_requests_are_told_what_there_is() {
        for (request, words) in [
            ("nothing", "there is no workload 'nothing'"),
            ("varmail:file=3", "it has files"),
            ("varmail:files", "no KEY=VALUE"),
            ("varmail:files=0", "at least 1"),
            ("varmail:files=many", "is no number"),
            ("varmail:files=99999999999G", "too large"),
            ("varmail:files=99999999999999999999", "is no number"),
            ("varmail:threads=100000", "at most"),
            ("varmail:files=1,files=2", "given twice"),
            ("write:sync=perhaps", "one of"),
            ("varmail:threads=~4", "only files and size can be scaled"),
            ("varmail:files=~many", "is no number"),
            ("headline:files=1", "group"),
        ] {
            let error = workloads(request, 1.0).unwrap_err();
            assert!(error.contains(words), "{request}: {error}");
        }
    }
}
