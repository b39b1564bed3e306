//! The numbers and words that a workload is built from.

/// A scale leaves so many files, and so many bytes of all.
const FILES_MIN: u64 = 20;
/// Files that a workload may have.
const FILES_MAX: usize = 10_000_000;
const BYTES_MIN: u64 = 1 << 20;

/// A number, perhaps with K, M, G or T: powers of 1024.
fn any_number(key: &str, text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(format!("{key}={text} is no number")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{key}={text} is no number"))?;
    number.checked_mul(1 << shift).ok_or(format!("{key}={text} is too large"))
}

/// A number of at least 1.
fn number(key: &str, text: &str) -> Result<u64, String> {
    match any_number(key, text)? {
        0 => Err(format!("{key}={text}: it has to be at least 1")),
        number => Ok(number),
    }
}

/// A published number times the scale, but not less than `least` or all of it.
fn scaled(published: u64, scale: f64, least: u64) -> u64 {
    ((published as f64 * scale) as u64).max(least.min(published))
}

/// A published number of files or bytes, as text, times the scale.
pub(crate) fn published(key: &str, text: &str, scale: f64) -> Result<u64, String> {
    let least = match key {
        "files" => FILES_MIN,
        "size" => BYTES_MIN,
        _ => return Err(format!("{key}=~{text}: only files and size can be scaled")),
    };
    Ok(scaled(number(key, text)?, scale, least))
}

/// The parameters of one workload: those it has, with their values.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) values: Vec<(&'static str, String)>,
    /// Keys whose values were asked for, and are taken as they are.
    pub(crate) given: Vec<&'static str>,
    /// How much of the published number of files, or bytes, is worked on otherwise.
    pub(crate) scale: f64,
}

impl Parameters {
    fn text(&self, key: &str) -> &str {
        self.values.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    /// Where a parameter's value is in a series, if it is a number: some have words.
    pub(crate) fn place(&self, key: &str) -> Option<f64> {
        any_number(key, self.text(key)).ok().map(|number| number as f64)
    }

    /// A number of at least 1.
    pub(crate) fn number(&self, key: &'static str) -> Result<u64, String> {
        number(key, self.text(key))
    }

    /// A number up to `most`.
    pub(crate) fn count(&self, key: &'static str, most: usize) -> Result<usize, String> {
        match self.number(key)? {
            number if number <= most as u64 => Ok(number as usize),
            number => Err(format!("{key}={number} is too large: at most {most}")),
        }
    }

    /// A number of files: the published one times the scale, unless it was given.
    pub(crate) fn files(&self) -> Result<usize, String> {
        self.count("files", FILES_MAX).map(|files| self.scaled("files", files as u64, FILES_MIN) as usize)
    }

    /// Bytes of all: the published number times the scale, unless it was given.
    pub(crate) fn size(&self) -> Result<u64, String> {
        self.number("size").map(|bytes| self.scaled("size", bytes, BYTES_MIN))
    }

    fn scaled(&self, key: &str, published: u64, least: u64) -> u64 {
        match self.given.contains(&key) {
            true => published,
            false => scaled(published, self.scale, least),
        }
    }

    /// One of these words; gives its place.
    pub(crate) fn word(&self, key: &'static str, words: &[&str]) -> Result<usize, String> {
        let text = self.text(key);
        let found = words.iter().position(|word| *word == text);
        found.ok_or_else(|| format!("{key}={text}: it is one of {}", words.join(", ")))
    }
}
