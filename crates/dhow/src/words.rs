//! Sizes, rates, durations and near misses, as people read and write them.

use std::time::Duration;

/// The known word nearest to `word`, if it is near enough to be meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(2);
    known.into_iter().map(|k| (distance(word, k), k)).filter(|(d, _)| *d <= limit).min_by_key(|(d, _)| *d).map(|d| d.1)
}

/// Levenshtein distance: how many characters to insert, remove or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let here = (diagonal + usize::from(x != *y)).min(left + 1).min(*cell + 1);
            diagonal = std::mem::replace(cell, here);
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// A size: a number of bytes, or one with K, M, G, T (powers of 1024; `KiB` and `KB` mean the same), perhaps with
/// a tenth: what [`bytes`](fn@bytes) shows can be read again.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write for example 4096, 64K, 512M or 2G");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    // Tenths, as sizes are shown; of a byte there are none.
    let (tenths, unit) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digit = rest.chars().next().and_then(|c| c.to_digit(10)).ok_or_else(wrong)?;
            (u64::from(digit), rest.get(1..).unwrap_or_default())
        }
        None => (0, rest),
    };
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    if shift == 0 && rest.starts_with('.') {
        return Err(wrong());
    }
    let tenths = (tenths << shift) / 10;
    number
        .checked_mul(1 << shift)
        .and_then(|n| n.checked_add(tenths))
        .filter(|n| *n <= i64::MAX as u64)
        .ok_or_else(|| format!("`{text}` is too large"))
}

/// A duration: seconds, or a number with ms, s, m, h.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; write for example 90s, 500ms, 15m or 2h");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let factor = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).map(Duration::from_millis).ok_or_else(|| format!("`{text}` is too long"))
}

/// An octal mode such as 755.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("`{text}` is not a mode; write it in octal, for example 755")),
    }
}

/// Bytes with a unit of 1024: `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = "KiB";
    for next in UNITS.into_iter().skip(1) {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Bytes as `ls -h` has them: `1.5G`.
pub fn short_bytes(n: u64) -> String {
    if n < 1024 { n.to_string() } else { bytes(n).replace(' ', "").replace("iB", "") }
}

/// A rate.
pub fn rate(n: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-6);
    format!("{}/s", bytes((n as f64 / seconds) as u64))
}

/// Seconds with three digits of precision.
pub fn seconds(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s < 10.0 { format!("{s:.3} s") } else { format!("{s:.1} s") }
}

/// `1 file`, `2 files`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A time as `2026-11-30 14:15:00` UTC (proleptic Gregorian calendar, also before 1970).
pub fn date(secs: i64) -> String {
    let days = secs.div_euclid(86_400);
    let rest = secs.rem_euclid(86_400);
    // Days since 0000-03-01, in eras of 400 years, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses() {
        let known = ["anonuid", "anongid", "clients", "listen"];
        assert_eq!(nearest("anonuuid", known), Some("anonuid"));
        assert_eq!(nearest("lsiten", known), Some("listen"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1 kb"), Ok(1024));
        for n in [0, 1023, 1536, 256 << 20, 3 << 30, 5 << 40] {
            assert_eq!(parse_size(&bytes(n)), Ok(n), "as it is shown");
        }
        for bad in ["", "M", "5X", "-1", "1.5", "1.G", "1.55G", ".5G", "1.5é"] {
            assert!(parse_size(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
        assert!(parse_size("99999999T").unwrap_err().contains("too large"));
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
        assert_eq!(short_bytes(3 << 30), "3.0G");
    }

    #[test]
    fn durations_and_modes() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(parse_duration("5 days").is_err());
        assert_eq!(parse_mode("0755"), Ok(0o755));
        assert!(parse_mode("888").is_err() && parse_mode("17777").is_err());
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        // Case B18: before 1970, and beyond 2038.
        assert_eq!(date(-1), "1969-12-31 23:59:59");
        assert_eq!(date(-14_182_980), "1969-07-20 20:17:00");
        assert_eq!(date(2_208_988_800), "2040-01-01 00:00:00");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00");
    }
}
