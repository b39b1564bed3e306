//! Which snapshots a policy takes, and which it lets go of: functions of the policy, what there is, and the time.
//!
//! - A period is a stretch of UTC: of so many seconds since 1970, a week from Monday on, a month, a year. Days of UTC have
//!   no hour too many or too few.
//! - A snapshot is *due* when the present period of some rule has none. So what was missed while nobody served is made up
//!   for with one, and a clock that was put back finds what was taken then the first time.
//! - A rule keeps the first snapshot of each of its newest periods that have one. Newest is what was taken last, whatever
//!   the clock said: a clock that was wrong for an hour or a year takes nothing away, and periods in which nobody served or
//!   nothing changed don't count.
//! - Only what a policy had taken is ever let go of; that has a name and a comment which say so. What is held stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The comment of what a policy had taken.
pub(crate) const COMMENT: &str = "taken by policy";
/// The name's form, for the time of UTC at which it was taken.
const NAME: &str = "auto-%Y%m%dT%H%M%SZ";
/// Snapshots that one rule keeps at most: a volume's list has room for more than twice that.
const COUNT_MAX: u32 = 9999;

const DAY: i64 = 86_400;
/// Seconds of the units in which a period can be given.
const UNITS: [(&str, i64); 3] = [("s", 1), ("min", 60), ("h", 3600)];
const NAMED: [(&str, Period); 5] = [
    ("hourly", Period::Seconds(3600)),
    ("daily", Period::Seconds(DAY)),
    ("weekly", Period::Week),
    ("monthly", Period::Month),
    ("yearly", Period::Year),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Seconds(i64),
    Week,
    Month,
    Year,
}

impl Period {
    /// The number of the period that has the second `at`, counted from 1970.
    fn number(self, at: i64) -> i64 {
        let date = || date_time(at).date();
        match self {
            Period::Seconds(length) => at.div_euclid(length),
            // 1970 began on a Thursday.
            Period::Week => (at.div_euclid(DAY) + 3).div_euclid(7),
            Period::Month => i64::from(date().year()) * 12 + i64::from(date().month()),
            Period::Year => i64::from(date().year()),
        }
    }

    /// When the next one begins at the earliest.
    fn next(self, at: i64) -> i64 {
        let length = if let Period::Seconds(length) = self { length } else { DAY };
        (at.div_euclid(length) + 1) * length
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = NAMED.iter().find(|(_, period)| period == self) {
            return f.write_str(name);
        }
        let Period::Seconds(length) = self else { unreachable!("all others have names") };
        let fits = |(_, unit): &&(&str, i64)| length % unit == 0;
        let (name, unit) = UNITS.iter().rev().find(fits).expect("seconds fit");
        write!(f, "{}{name}", length / unit)
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Period, String> {
        if let Some((_, period)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(*period);
        }
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let length = UNITS.iter().find(|(name, _)| *name == unit).and_then(|(_, unit)| {
            let number: i64 = number.parse().ok()?;
            number.checked_mul(*unit)
        });
        match length {
            Some(length @ 1..DAY) => Ok(Period::Seconds(length)),
            _ => Err(format!(
                "'{text}' is no period: choose hourly, daily, weekly, monthly, yearly, or less than a day such as 15min, 6h or 30s"
            )),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    period: Period,
    count: u32,
}

/// How many snapshots are kept for which periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy(Vec<Rule>);

/// `hourly=24,daily=7`; where commas separate other things, colons do as well.
impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let mut rules: Vec<Rule> = Vec::new();
        for part in text.split([',', ':']) {
            let (period, count) = part.split_once('=').ok_or_else(|| {
                format!("'{part}' should say how many are kept for which period, as hourly=24 does")
            })?;
            let period: Period = period.parse()?;
            let count = match count.parse() {
                Ok(count @ 1..=COUNT_MAX) => count,
                _ => return Err(format!("'{part}': keep from 1 to {COUNT_MAX}")),
            };
            if rules.iter().any(|rule| rule.period == period) {
                return Err(format!("{period} is there twice"));
            }
            rules.push(Rule { period, count });
        }
        Ok(Policy(rules))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Rule { period, count }) in self.0.iter().enumerate() {
            write!(f, "{}{period}={count}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A snapshot that a policy had taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    pub(crate) name: String,
    /// The second of UTC that its name says.
    pub(crate) at: i64,
    pub(crate) held: bool,
}

impl Scheduled {
    /// Those among the snapshots of a volume, in the same order, which is that in which they were taken.
    pub(crate) fn among(snapshots: &[native::Snapshot]) -> Vec<Scheduled> {
        let scheduled = |snapshot: &native::Snapshot| {
            let name = snapshot.name.clone();
            let at = time_in(&name).filter(|_| snapshot.comment == COMMENT)?;
            Some(Scheduled { name, at, held: !snapshot.holds.is_empty() })
        };
        snapshots.iter().filter_map(scheduled).collect()
    }
}

/// The name of a snapshot taken by a policy in the second `at`.
pub(crate) fn name_at(at: i64) -> String {
    date_time(at).strftime(NAME).to_string()
}

fn time_in(name: &str) -> Option<i64> {
    let at = DateTime::strptime(NAME, name).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    // One name for one time, and no other.
    (name_at(at) == name).then_some(at)
}

/// UTC; times that no calendar has are those at its ends.
fn date_time(at: i64) -> DateTime {
    let end = if at < 0 { Timestamp::MIN } else { Timestamp::MAX };
    TimeZone::UTC.to_datetime(Timestamp::from_second(at).unwrap_or(end))
}

impl Policy {
    /// Whether a snapshot is to be taken now, if there are those taken at these times.
    pub(crate) fn is_due(&self, taken: impl Iterator<Item = i64> + Clone, now: i64) -> bool {
        self.0.iter().any(|Rule { period, .. }| {
            let present = period.number(now);
            taken.clone().all(|at| period.number(at) != present)
        })
    }

    /// When the next period begins: nothing is due before if nothing is now.
    pub(crate) fn next(&self, now: i64) -> i64 {
        self.0.iter().map(|rule| rule.period.next(now)).min().expect("a policy has rules")
    }

    /// The snapshots to let go of, oldest first, of those that a policy had taken, in the order in which they were.
    pub(crate) fn superfluous<'a>(&self, scheduled: &'a [Scheduled]) -> Vec<&'a Scheduled> {
        let mut kept: BTreeSet<usize> = BTreeSet::new();
        for Rule { period, count } in &self.0 {
            // Of each of the newest periods, the place of its first.
            let mut firsts: BTreeMap<i64, usize> = BTreeMap::new();
            for (place, snapshot) in scheduled.iter().enumerate().rev() {
                let number = period.number(snapshot.at);
                if firsts.contains_key(&number) || firsts.len() < *count as usize {
                    firsts.insert(number, place);
                }
            }
            kept.extend(firsts.into_values());
        }
        let is_superfluous =
            |(place, snapshot): &(usize, &Scheduled)| !snapshot.held && !kept.contains(place);
        scheduled.iter().enumerate().filter(is_superfluous).map(|(_, snapshot)| snapshot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    /// Seconds of a time such as `2026-11-22T10:00:00`.
    fn at(text: &str) -> i64 {
        let time: DateTime = text.parse().unwrap();
        time.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second()
    }

    fn scheduled(times: &[i64]) -> Vec<Scheduled> {
        times.iter().map(|at| Scheduled { name: name_at(*at), at: *at, held: false }).collect()
    }

    fn left(policy: &Policy, scheduled: &mut Vec<Scheduled>) {
        let gone: Vec<String> = policy.superfluous(scheduled).into_iter().map(|it| it.name.clone()).collect();
        scheduled.retain(|it| !gone.contains(&it.name));
    }

    #[test]
    fn a_policy_says_what_it_was_told() {
        for text in
            ["hourly=24,daily=7", "15min=4,hourly=24,daily=31,weekly=8,monthly=12,yearly=100", "30s=1"]
        {
            assert_eq!(policy(text).to_string(), text);
            assert_eq!(policy(&text.replace(',', ":")), policy(text));
        }
        assert_eq!(policy("60min=3").to_string(), "hourly=3");
        for (text, word) in [
            ("", "hourly=24"),
            ("hourly", "hourly=24"),
            ("hourly=0", "from 1 to"),
            ("hourly=10000", "from 1 to"),
            ("hourly=-1", "from 1 to"),
            ("hourly=2,60min=3", "twice"),
            ("fortnightly=2", "'fortnightly' is no period"),
            ("24h=2", "no period"),
            ("0s=2", "no period"),
            ("99999999999999999999s=2", "no period"),
            ("s=2", "no period"),
            ("hourly=2,,daily=1", "hourly=24"),
        ] {
            let message = text.parse::<Policy>().unwrap_err();
            assert!(message.contains(word), "{text}: {message}");
        }
    }

    #[test]
    fn names_tell_times_and_others_names_do_not() {
        let noon = at("2026-11-22T12:00:07");
        assert_eq!(name_at(noon), "auto-20261122T120007Z");
        assert_eq!(time_in("auto-20261122T120007Z"), Some(noon));
        for name in [
            "auto-",
            "auto-monday",
            "auto-20261322T120007Z",
            "auto-20261122T120007Z-mine",
            "auto-20261122T1200Z",
        ] {
            assert_eq!(time_in(name), None, "{name}");
        }
        let snapshot = |name: &str, comment: &str, holds: &[&str]| native::Snapshot {
            name: name.into(),
            comment: comment.into(),
            version: 1,
            taken: vfs::Time { sec: 0, nsec: 0 },
            holds: holds.iter().map(|tag| (*tag).into()).collect(),
        };
        let all = [
            snapshot("auto-20261122T110000Z", COMMENT, &["backup"]),
            snapshot("auto-20261122T115900Z", "mine", &[]),
            snapshot("monday", COMMENT, &[]),
            snapshot("auto-20261122T120007Z", COMMENT, &[]),
        ];
        let found = Scheduled::among(&all);
        let said: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.held)).collect();
        assert_eq!(said, [("auto-20261122T110000Z", true), ("auto-20261122T120007Z", false)]);
    }

    #[test]
    fn periods_begin_where_the_calendar_says() {
        let due = |text: &str, taken: &str, now: &str| policy(text).is_due([at(taken)].into_iter(), at(now));
        for (text, last, first) in [
            ("15min=1", "2026-11-22T10:14:59", "2026-11-22T10:15:00"),
            ("hourly=1", "2026-11-22T09:59:59", "2026-11-22T10:00:00"),
            // Where Europe and America change their clocks, UTC has a day like all others.
            ("hourly=1", "2026-10-25T00:59:59", "2026-10-25T01:00:00"),
            ("daily=1", "2026-03-28T23:59:59", "2026-03-29T00:00:00"),
            ("weekly=1", "2026-11-22T23:59:59", "2026-11-23T00:00:00"), // a Sunday, a Monday
            ("monthly=1", "2028-02-29T23:59:59", "2028-03-01T00:00:00"),
            ("yearly=1", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
            ("daily=1", "1969-12-31T23:59:59", "1970-01-01T00:00:00"),
        ] {
            assert!(due(text, last, first), "{text}: {first}");
            assert!(!due(text, last, last), "{text}: {last}");
            assert_eq!(policy(text).next(at(last)), at(first), "{text}");
        }
        assert!(policy("monthly=1").is_due([].into_iter(), 0));
        // A period of one rule may begin within that of another.
        assert!(due("7min=1:hourly=1", "2026-11-22T09:59:59", "2026-11-22T10:00:00"));
    }

    /// A year of hours: what is kept is what the rules say, and is the first of each period.
    #[test]
    fn a_year_leaves_what_the_policy_says() {
        let policy = policy("hourly=24,daily=7,weekly=4,monthly=12");
        let mut kept: Vec<Scheduled> = Vec::new();
        let begin = at("2026-01-01T00:00:00");
        for hour in 0..365 * 24 {
            let now = begin + hour * 3600 + 5;
            assert!(policy.is_due(kept.iter().map(|it| it.at), now));
            kept.extend(scheduled(&[now]));
            assert!(!policy.is_due(kept.iter().map(|it| it.at), now + 3594));
            left(&policy, &mut kept);
            assert_eq!(kept.last().unwrap().at, now, "the newest stays");
        }
        let names: Vec<&str> = kept.iter().map(|it| it.name.as_str()).collect();
        let midnights = |days: &[&str]| -> Vec<String> {
            days.iter().map(|day| format!("auto-2026{day}T000005Z")).collect()
        };
        let mut wanted = midnights(&[
            "0101", "0201", "0301", "0401", "0501", "0601", "0701", "0801", "0901", "1001", "1101",
            "1201", // months
            "1207", "1214", "1221", // weeks, with the next
            "1225", "1226", "1227", "1228", "1229", "1230", // days, with the hours'
        ]);
        wanted.extend((0..24).map(|hour| format!("auto-20261231T{hour:02}0005Z")));
        assert_eq!(names, wanted);
    }

    #[test]
    fn after_a_pause_one_is_due_and_nothing_else_goes() {
        let policy = policy("hourly=3,daily=2");
        let begin = at("2026-11-20T00:00:00");
        let mut kept = scheduled(&[begin, begin + 3600, begin + 7200]);
        let now = begin + 30 * DAY + 1800;
        assert!(policy.is_due(kept.iter().map(|it| it.at), now));
        kept.extend(scheduled(&[now]));
        assert!(!policy.is_due(kept.iter().map(|it| it.at), now + 1));
        left(&policy, &mut kept);
        // Three hours that have one: the newest, and the last two before the pause; two days.
        assert_eq!(kept, scheduled(&[begin, begin + 3600, begin + 7200, now]));
        kept.extend(scheduled(&[now + 3600, now + 7200]));
        left(&policy, &mut kept);
        assert_eq!(kept, scheduled(&[begin, now, now + 3600, now + 7200]));
    }

    #[test]
    fn a_clock_that_was_wrong_takes_nothing_away() {
        let policy = policy("hourly=2");
        let now = at("2026-11-22T10:00:00");
        let year = 365 * DAY;
        // A year ahead for two hours, then right again.
        let mut kept = scheduled(&[now - 3600, now, now + year, now + year + 3600]);
        assert!(policy.is_due(kept.iter().map(|it| it.at), now + 3 * 3600));
        kept.extend(scheduled(&[now + 3 * 3600]));
        left(&policy, &mut kept);
        assert_eq!(kept, scheduled(&[now + year + 3600, now + 3 * 3600]), "the two taken last");
        kept.extend(scheduled(&[now + 4 * 3600]));
        left(&policy, &mut kept);
        assert_eq!(
            kept,
            scheduled(&[now + 3 * 3600, now + 4 * 3600]),
            "what was taken ahead of time is older"
        );
        // Back by half an hour, into an hour that has one.
        assert!(!policy.is_due(kept.iter().map(|it| it.at), now + 3 * 3600 + 1800));
        assert!(policy.superfluous(&kept).is_empty());
    }

    #[test]
    fn what_is_held_stays_and_counts() {
        let policy = policy("hourly=2");
        let mut kept = scheduled(&[0, 3600, 7200, 10800]);
        kept[0].held = true;
        kept[3].held = true;
        left(&policy, &mut kept);
        assert_eq!(kept.iter().map(|it| it.at).collect::<Vec<_>>(), [0, 7200, 10800]);
    }

    #[test]
    fn of_a_period_the_first_stays() {
        let mut kept = scheduled(&[DAY, DAY + 10, DAY + 20, 2 * DAY + 5, 2 * DAY + 6]);
        left(&policy("daily=5"), &mut kept);
        assert_eq!(kept, scheduled(&[DAY, 2 * DAY + 5]));
    }
}
