//! Parses typed durations: 90s, 5m, 250ms.

use std::time::Duration;

use crate::times::{format_duration, parse_duration};

/// A duration with its unit. A bare number is an error: it could mean seconds or minutes.
pub fn parse(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("the unit is missing; write {text}s for seconds or {text}m for minutes"));
    }
    parse_duration(text).ok_or_else(|| "write a time like 5m, 90s or 250ms".into())
}

/// A duration within these bounds.
pub fn between(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    match parse(text)? {
        time if time < least => Err(format!("must be at least {}", format_duration(least))),
        time if time > most => Err(format!("must be at most {}", format_duration(most))),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let minute = Duration::from_secs(60);
        assert_eq!(parse("1m"), Ok(minute));
        assert_eq!(parse("5").unwrap_err(), "the unit is missing; write 5s for seconds or 5m for minutes");
        for bad in ["", "soon", "-5s", "5 parsecs"] {
            assert!(parse(bad).unwrap_err().contains("like 5m"), "{bad}");
        }
        assert_eq!(between("60s", minute, minute), Ok(minute));
        assert_eq!(between("59s", minute, minute).unwrap_err(), "must be at least 1m");
        assert_eq!(between("61s", minute, minute).unwrap_err(), "must be at most 1m");
    }
}
