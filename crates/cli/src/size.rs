//! Sizes: `1G` as people write them, and as they read them.

/// Units by their power of 1024.
const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Reads a size: a number, perhaps with a decimal point, and K, M, G, T or P for powers of 1024 (`KiB`, `kb` and
/// the like mean the same).
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("'{text}' is no size: write a number of bytes, or one with K, M, G or T, like 1G or 1.5G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let mut unit = text[digits.len()..].to_ascii_uppercase();
    for ending in ["IB", "B"] {
        if let Some(rest) = unit.strip_suffix(ending) {
            unit = rest.to_string();
            break;
        }
    }
    let shift = match unit.chars().next() {
        None => 0,
        Some(letter) if unit.len() == 1 => {
            UNITS.iter().find(|(name, _)| *name == letter).map(|(_, shift)| *shift).ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let decimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !decimal(whole) || !decimal(fraction) || fraction.len() > 9 {
        return Err(wrong());
    }
    let too_large = || format!("'{text}' is more bytes than 64 bits can count");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) << shift;
    if !fraction.is_empty() {
        if shift == 0 {
            return Err(format!("'{text}' is a fraction of a byte"));
        }
        let fraction_value: u128 = fraction.parse().map_err(|_| wrong())?;
        bytes += (fraction_value << shift) / 10u128.pow(fraction.len() as u32);
    }
    u64::try_from(bytes).map_err(|_| too_large())
}

/// A size for people: three digits or more of precision, exact where it is round, and else never more than it is.
pub(crate) fn human(bytes: u64) -> String {
    let Some((letter, shift)) = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let unit = 1u64 << shift;
    if bytes.is_multiple_of(unit) {
        format!("{} {letter}iB", bytes >> shift)
    } else {
        let hundredths = (u128::from(bytes) * 100) >> shift;
        format!("{}.{:02} {letter}iB", hundredths / 100, hundredths % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1024),
            ("1k", 1024),
            ("64M", 64 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("1gb", 1 << 30),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
            ("17B", 17),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "G",
            "-1",
            "1X",
            "1GG",
            "1 G",
            "0x10",
            "1.G.",
            "99999999999T",
            "18446744073709551616",
            "1.5",
            "½G",
            "1é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_fitting_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (1 << 30, "1 GiB"),
            ((1 << 30) + (1 << 20), "1.00 GiB"),
            ((16 << 20) - 1, "15.99 MiB"),
            (u64::MAX, "16383.99 PiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
