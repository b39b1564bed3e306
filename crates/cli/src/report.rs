//! What a query answers, written once and shown as text or as JSON.

use std::fmt;
use std::io::{BufWriter, IsTerminal, Write};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value as Json;

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
    /// A time of the wall clock, in seconds since 1970: RFC 3339 in JSON.
    Time(u64),
    Flag(bool),
    /// Names, or what else belongs together.
    List(Vec<String>),
    /// Not known, or not there.
    None,
    /// A section of its own.
    Fields(Fields),
    /// A table, all of whose rows have the same keys.
    Rows(Vec<Fields>),
    /// What text has words for, and JSON all of.
    Words(String, Box<Value>),
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

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Value {
        text.map_or(Value::None, Value::Text)
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

    /// The same, but with another value in the place of the one there is, if there is one.
    pub(crate) fn with_now(mut self, key: &'static str, value: impl Into<Value>) -> Fields {
        match self.0.iter_mut().find(|(there, _)| *there == key) {
            Some((_, old)) => {
                *old = value.into();
                self
            }
            None => self.with(key, value),
        }
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
        serde_json::to_value(self).expect("keys are text")
    }

    /// Text, a line each; sections and tables below what they belong to.
    pub(crate) fn text(&self) -> String {
        self.to_string()
    }

    fn write_text(&self, indent: usize, out: &mut dyn fmt::Write) -> fmt::Result {
        let simple = |value: &Value| !matches!(value, Value::Fields(_) | Value::Rows(_));
        let width =
            self.0.iter().filter(|(_, value)| simple(value)).map(|(key, _)| key.len()).max().unwrap_or(0);
        let margin = " ".repeat(indent);
        for (key, value) in &self.0 {
            let label = key.replace('_', " ");
            match value {
                Value::Fields(fields) => {
                    writeln!(out, "{margin}{label}")?;
                    fields.write_text(indent + 2, out)?;
                }
                Value::Rows(rows) if rows.is_empty() => writeln!(out, "{margin}{label}: none")?,
                Value::Rows(rows) => {
                    writeln!(out, "{margin}{label}")?;
                    write_table(rows, indent + 2, out)?;
                }
                simple => writeln!(out, "{margin}{label:width$}  {}", simple.text())?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_text(0, f)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Text(text) => serializer.serialize_str(text),
            Value::Count(count) | Value::Bytes(count) => serializer.serialize_u64(*count),
            Value::Seconds(number) | Value::Number(number) => serializer.serialize_f64(*number),
            Value::Time(seconds) => serializer.serialize_str(&written_time(*seconds, "%FT%TZ")),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::List(list) => list.serialize(serializer),
            Value::None => serializer.serialize_unit(),
            Value::Fields(fields) => fields.serialize(serializer),
            Value::Rows(rows) => rows.serialize(serializer),
            Value::Words(_, value) => value.serialize(serializer),
        }
    }
}

impl Value {
    /// Rows that text has in a few words each, in one line.
    pub(crate) fn in_words(rows: impl Iterator<Item = (String, Fields)>) -> Value {
        let (words, rows): (Vec<String>, Vec<Fields>) = rows.unzip();
        Value::Words(words.join(", "), Box::new(Value::Rows(rows)))
    }

    fn text(&self) -> String {
        match self {
            // What others named must not look like a line of ours.
            Value::Text(text) | Value::Words(text, _) => printable(text).replace('\n', "\u{FFFD}"),
            Value::List(list) => Value::Text(list.join(", ")).text(),
            Value::Count(count) => count.to_string(),
            Value::Bytes(bytes) => size::human(*bytes),
            Value::Seconds(seconds) if *seconds < 0.001 => format!("{:.0} µs", seconds * 1e6),
            Value::Seconds(seconds) if *seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
            Value::Seconds(seconds) => format!("{seconds:.1} s"),
            Value::Number(number) => format!("{number:.2}"),
            Value::Time(seconds) => date(*seconds),
            Value::Flag(flag) => if *flag { "yes" } else { "no" }.to_string(),
            Value::None => "-".to_string(),
            Value::Fields(_) | Value::Rows(_) => String::new(),
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Value::Count(_) | Value::Bytes(_) | Value::Seconds(_) | Value::Number(_))
    }
}

/// Rows below their keys; numbers to the right. They are gone through twice, since there may be millions: how wide the columns are, and then
/// what is in them.
fn write_table(rows: &[Fields], indent: usize, out: &mut dyn fmt::Write) -> fmt::Result {
    let Some(first) = rows.first() else { return Ok(()) };
    let keys: Vec<String> = first.0.iter().map(|(key, _)| key.replace('_', " ")).collect();
    let mut widths: Vec<usize> = keys.iter().map(|key| key.chars().count()).collect();
    for row in rows {
        for (width, (_, value)) in widths.iter_mut().zip(&row.0) {
            *width = (*width).max(value.text().chars().count());
        }
    }
    let right: Vec<bool> = first.0.iter().map(|(_, value)| value.is_number()).collect();
    let mut write_line = |cells: &mut dyn Iterator<Item = String>| {
        let mut line = " ".repeat(indent);
        for ((cell, width), right) in cells.zip(&widths).zip(&right) {
            let padding = " ".repeat(width - cell.chars().count());
            line.push_str(&if *right { format!("{padding}{cell}  ") } else { format!("{cell}{padding}  ") });
        }
        writeln!(out, "{}", line.trim_end())
    };
    write_line(&mut keys.iter().cloned())?;
    rows.iter().try_for_each(|row| write_line(&mut row.0.iter().map(|(_, value)| value.text())))
}

/// How an answer is shown.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Form {
    Text,
    /// JSON in one line, for a program.
    Json,
    /// JSON indented, for a person.
    IndentedJson,
}

impl Form {
    /// Of what is printed.
    pub(crate) fn of(json: bool) -> Form {
        match json {
            false => Form::Text,
            true if std::io::stdout().is_terminal() => Form::IndentedJson,
            true => Form::Json,
        }
    }
}

fn write(value: &(impl Serialize + fmt::Display), form: Form, out: &mut dyn Write) -> std::io::Result<()> {
    match form {
        Form::Text => return write!(out, "{value}"),
        Form::Json => serde_json::to_writer(&mut *out, value)?,
        Form::IndentedJson => serde_json::to_writer_pretty(&mut *out, value)?,
    }
    writeln!(out)
}

/// Takes parts of an answer; fails if nobody listens any more.
pub(crate) type Parts<'a> = dyn FnMut(Json) -> Result<(), Failure> + 'a;

/// Bytes of an answer's text that are told at once, about.
const PART_BYTES: usize = 1 << 20;

/// Tells in parts what [`print()`] would print.
pub(crate) fn tell(fields: &Fields, form: Form, take: &mut Parts<'_>) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(PART_BYTES, Telling(take));
    write(fields, form, &mut out).and_then(|()| out.flush()).map_err(Failure::from)
}

/// Makes a part of whatever is written at once: text, of which the buffer before it does not divide what it was given.
struct Telling<'t, 'p>(&'t mut Parts<'p>);

impl Write for Telling<'_, '_> {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        let part = std::str::from_utf8(text).map_err(std::io::Error::other)?;
        (self.0)(part.into()).map_err(|failure| std::io::Error::other(failure.what))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Prints an answer.
pub(crate) fn print(fields: &Fields, json: bool) -> Result<(), Failure> {
    print_with(|out| write(fields, Form::of(json), out))
}

/// Prints JSON.
pub(crate) fn print_json(value: &Json) -> Result<(), Failure> {
    print_with(|out| write(value, Form::of(true), out))
}

/// Prints text.
pub(crate) fn print_text(text: &str) -> Result<(), Failure> {
    print_while_read(text).map(drop)
}

/// The same; whether anybody may read what comes next.
pub(crate) fn print_while_read(text: &str) -> Result<bool, Failure> {
    write_answer(|out| out.write_all(text.as_bytes()))
}

fn print_with(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<(), Failure> {
    write_answer(write).map(drop)
}

/// A reader that went away (`| head`) is no failure: `false`.
fn write_answer(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<bool, Failure> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("cannot write the answer: {error}"))),
    }
}

/// A time of the wall clock, in UTC: `2026-11-21 20:59:03`.
pub(crate) fn date(seconds: u64) -> String {
    written_time(seconds, "%F %T")
}

fn written_time(seconds: u64, form: &str) -> String {
    match i64::try_from(seconds).map(Timestamp::from_second) {
        Ok(Ok(time)) => time.strftime(form).to_string(),
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
        assert_eq!(serde_json::to_value(Value::Time(951_782_400)).unwrap(), "2000-02-29T00:00:00Z");
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

    /// Parts are what is printed, of which no letter is divided.
    #[test]
    fn what_is_told_in_parts_is_what_is_printed() {
        let row = |number: u64| {
            Fields::new().with("name", "größe 名".repeat(number as usize % 7)).with("n", number < 5)
        };
        let fields = Fields::new().with("rows", Value::Rows((0..50_000).map(row).collect()));
        for (form, text) in [(Form::Text, fields.text()), (Form::Json, format!("{}\n", fields.json()))] {
            let mut parts = Vec::new();
            let told = tell(&fields, form, &mut |part| {
                parts.push(part.as_str().unwrap().to_string());
                Ok(())
            });
            assert!(told.is_ok() && parts.concat() == text, "{told:?}");
            assert!(parts.len() > 2 && parts.iter().all(|part| part.len() <= PART_BYTES), "{form:?}");
        }
        let gone = tell(&fields, Form::Text, &mut |_| Err(Failure::new("nobody listens")));
        assert_eq!(gone.unwrap_err().what, "nobody listens");
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
