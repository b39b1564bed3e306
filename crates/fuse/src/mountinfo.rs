//! How the kernel writes paths in `/proc/self/mountinfo`.

/// What a field of it stands for: blanks, tabs, line ends and backslashes are written as three octal digits behind a backslash.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|digits| byte == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        if let Some(digits) = octal {
            plain.push(
                digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
            );
            rest = &after[3..];
        } else {
            plain.push(byte);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_written_in_octal_is_told() {
        assert_eq!(unescape(br"/mnt/a\040b\134c\011d\012e"), b"/mnt/a b\\c\td\ne");
        assert_eq!(unescape(br"/mnt/\04"), br"/mnt/\04");
        assert_eq!(unescape(b"/plain"), b"/plain");
    }
}
