//! What a query answers, written once and shown as text or as JSON.

use std::io::{IsTerminal, Write};

use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use crate::failure::{Failure, printable};
use crate::size;

/// One value of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Count(u64),
    Bytes(u64),
    /// Shown with a unit that fits.
    Seconds(f64),
    /// A number that need not be whole.
    Number(f64),
    Flag(bool),
    /// Not known, or not there.
    None,
    /// A section of its own.
    Fields(Fields),
    /// A table, all of whose rows have the same keys.
    Rows(Vec<Fields>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_string())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Flag(flag)
    }
}

/// Values by key, in the order in which they are shown. JSON has the keys; text has them with spaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    pub(crate) fn new() -> Fields {
        Fields::default()
    }

    pub(crate) fn with(mut self, key: &'static str, value: impl Into<Value>) -> Fields {
        self.0.push((key, value.into()));
        self
    }

    /// The same with a text before everything else.
    pub(crate) fn with_first(mut self, key: &'static str, text: &str) -> Fields {
        self.0.insert(0, (key, Value::from(text)));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn json(&self) -> Json {
        let entries = self.0.iter().map(|(key, value)| (key.to_string(), value.json()));
        Json::Object(entries.collect::<Map<_, _>>())
    }

    /// Text, a line each; sections and tables below what they belong to.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.write_text(0, &mut text);
        text
    }

    fn write_text(&self, indent: usize, text: &mut String) {
        let simple = |value: &Value| !matches!(value, Value::Fields(_) | Value::Rows(_));
        let width =
            self.0.iter().filter(|(_, value)| simple(value)).map(|(key, _)| key.len()).max().unwrap_or(0);
        let margin = " ".repeat(indent);
        for (key, value) in &self.0 {
            let label = key.replace('_', " ");
            match value {
                Value::Fields(fields) => {
                    text.push_str(&format!("{margin}{label}\n"));
                    fields.write_text(indent + 2, text);
                }
                Value::Rows(rows) if rows.is_empty() => text.push_str(&format!("{margin}{label}: none\n")),
                Value::Rows(rows) => {
                    text.push_str(&format!("{margin}{label}\n"));
                    text.push_str(&table(rows, indent + 2));
                }
                simple => text.push_str(&format!("{margin}{label:width$}  {}\n", simple.text())),
            }
        }
    }
}

impl Value {
    fn json(&self) -> Json {
        match self {
            Value::Text(text) => Json::from(text.as_str()),
            Value::Count(count) | Value::Bytes(count) => Json::from(*count),
            Value::Seconds(number) | Value::Number(number) => Json::from(*number),
            Value::Flag(flag) => Json::from(*flag),
            Value::None => Json::Null,
            Value::Fields(fields) => fields.json(),
            Value::Rows(rows) => rows.iter().map(Fields::json).collect(),
        }
    }

    fn text(&self) -> String {
        match self {
            // What others named must not look like a line of ours.
            Value::Text(text) => printable(text).replace('\n', "\u{FFFD}"),
            Value::Count(count) => count.to_string(),
            Value::Bytes(bytes) => size::human(*bytes),
            Value::Seconds(seconds) if *seconds < 0.001 => format!("{:.0} µs", seconds * 1e6),
            Value::Seconds(seconds) if *seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
            Value::Seconds(seconds) => format!("{seconds:.1} s"),
            Value::Number(number) => format!("{number:.2}"),
            Value::Flag(flag) => if *flag { "yes" } else { "no" }.to_string(),
            Value::None => "-".to_string(),
            Value::Fields(_) | Value::Rows(_) => String::new(),
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Value::Count(_) | Value::Bytes(_) | Value::Seconds(_) | Value::Number(_))
    }
}

/// Rows below their keys; numbers to the right.
fn table(rows: &[Fields], indent: usize) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let keys: Vec<String> = first.0.iter().map(|(key, _)| key.replace('_', " ")).collect();
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| row.0.iter().map(|(_, value)| value.text()).collect()).collect();
    let width = |column: usize| {
        let longest = cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        longest.unwrap_or(0).max(keys[column].chars().count())
    };
    let widths: Vec<usize> = (0..keys.len()).map(width).collect();
    let right: Vec<bool> = first.0.iter().map(|(_, value)| value.is_number()).collect();
    let mut text = String::new();
    for row in std::iter::once(&keys).chain(&cells) {
        let mut line = " ".repeat(indent);
        for (column, cell) in row.iter().enumerate().take(widths.len()) {
            let padding = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            line.push_str(&if right[column] {
                format!("{padding}{cell}  ")
            } else {
                format!("{cell}{padding}  ")
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Takes parts of an answer; fails if nobody listens any more.
pub(crate) type Parts<'a> = dyn FnMut(Json) -> Result<(), Failure> + 'a;

/// Prints an answer.
pub(crate) fn print(fields: &Fields, json: bool) -> Result<(), Failure> {
    if json { print_json(&fields.json()) } else { print_text(&fields.text()) }
}

/// Prints JSON: indented for a person at a terminal, one line for a program.
pub(crate) fn print_json(value: &Json) -> Result<(), Failure> {
    let text = if std::io::stdout().is_terminal() { format!("{value:#}\n") } else { format!("{value}\n") };
    print_text(&text)
}

/// Prints text. A reader that went away (`| head`) is no failure.
pub(crate) fn print_text(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write the answer: {error}")))
        }
        _ => Ok(()),
    }
}

/// A time of the wall clock, in UTC: `2026-11-21 20:59:03`.
pub(crate) fn date(seconds: u64) -> String {
    match i64::try_from(seconds).map(Timestamp::from_second) {
        Ok(Ok(time)) => time.strftime("%F %T").to_string(),
        _ => format!("{seconds} s after 1970"), // beyond the calendar
    }
}

/// A UUID as people write it.
pub(crate) fn hyphenated(uuid: [u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// A line on how far a long command is, for who watches it: to standard error, if that is a terminal.
pub(crate) fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date(1_763_758_743), "2025-11-21 20:59:03");
        assert_eq!(date(u64::MAX), "18446744073709551615 s after 1970");
    }

    /// The directory of another user's mount had a line end in its name, and what followed looked like a zone.
    #[test]
    fn a_name_forged_a_row() {
        let row = |path: &str| Fields::new().with("path", path).with("volumes", "v");
        let fields = Fields::new().with("zones", Value::Rows(vec![row("/z\n  /forged  \u{1b}[2J")]));
        let text = fields.text();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(fields.json().to_string().contains("\\n"), "a program is told the name as it is");
    }

    #[test]
    fn text_and_json_say_the_same() {
        let row = |name: &str, bytes| Fields::new().with("name", name).with("bytes", Value::Bytes(bytes));
        let fields = Fields::new()
            .with("path", "/z")
            .with("free_bytes", Value::Bytes(2 << 20))
            .with("volumes", Value::Rows(vec![row("home", 1 << 20), row("x", 5)]));
        assert_eq!(
            fields.text(),
            "path        /z\nfree bytes  2 MiB\nvolumes\n  name  bytes\n  home  1 MiB\n  x       5 B\n"
        );
        assert_eq!(
            fields.json().to_string(),
            r#"{"path":"/z","free_bytes":2097152,"volumes":[{"name":"home","bytes":1048576},{"name":"x","bytes":5}]}"#
        );
    }
}
