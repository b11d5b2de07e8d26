//! Durations and times as text: "30s" and "2h 30m" in the configuration and on the command line, RFC 3339 in answers.

use std::time::Duration;

use jiff::fmt::friendly::{SpanParser, SpanPrinter};
use jiff::{SignedDuration, Span, SpanRelativeTo, SpanRound, Timestamp, Unit};

/// The mean year and month, as the units of a duration: 365.25 and 30.44 days.
const YEAR_S: f64 = 31_557_600.0;
const MONTH_S: f64 = 2_630_016.0;

static PARSER: SpanParser = SpanParser::new();
static PRINTER: SpanPrinter = SpanPrinter::new();

/// Reads a duration like "30s", "1.5h", "2h 30m" or "1day". A day has 24 hours.
///
/// The names of the units are jiff's. The sum is our own: jiff wants the largest unit first and each unit once, and has
/// no length for years and months without a date. Configurations in use were written without these rules.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = None;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| !c.is_ascii_digit() && c != '.');
        let (unit, after) = split(after.trim_start(), |c| !c.is_alphabetic());
        let number = number.parse::<f64>().ok().filter(|_| !number.ends_with('.'))?;
        let part = Duration::try_from_secs_f64(number * unit_s(unit)?).ok()?;
        total = Some(total.unwrap_or(Duration::ZERO).checked_add(part)?);
        rest = after.trim_start();
    }
    total
}

fn split(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// The length of a unit, in seconds.
fn unit_s(name: &str) -> Option<f64> {
    let span = match name {
        "" => return None,
        "M" => Span::new().months(1), // jiff knows only "mo"; "m" is a minute
        name => PARSER.parse_span(format!("1{name}")).ok()?,
    };
    match (span.get_years(), span.get_months()) {
        (1, _) => Some(YEAR_S),
        (_, 1) => Some(MONTH_S),
        _ => span.to_duration(SpanRelativeTo::days_are_24_hours()).ok().map(|length| length.as_secs_f64()),
    }
}

/// A duration as [`parse_duration`] reads it: "2h 30m", "1d".
pub fn format_duration(duration: Duration) -> String {
    let in_days = || {
        let span = Span::try_from(SignedDuration::try_from(duration).ok()?).ok()?;
        span.round(SpanRound::new().largest(Unit::Day).days_are_24_hours()).ok()
    };
    in_days().map_or_else(|| format!("{}s", duration.as_secs()), |span| PRINTER.span_to_string(&span))
}

/// A time of day as RFC 3339 in UTC, to the second. What is beyond the calendar (the year 9999) is its end.
pub fn rfc3339(unix_s: u64) -> String {
    timestamp(unix_s).to_string()
}

/// The seconds of a time in RFC 3339; None for a time before 1970.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    text.parse::<Timestamp>().ok().and_then(|at| u64::try_from(at.as_second()).ok())
}

/// A time of day in the form of HTTP headers: "Sun, 06 Nov 1994 08:49:37 GMT".
pub fn http_date(unix_s: u64) -> String {
    timestamp(unix_s).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn timestamp(unix_s: u64) -> Timestamp {
    let last = Timestamp::MAX.as_second();
    let unix_s = i64::try_from(unix_s).map_or(last, |unix_s| unix_s.min(last));
    Timestamp::from_second(unix_s).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The units and values of humantime 2.4, which earlier versions read durations with.
    #[test]
    fn durations_mean_what_they_meant_before() {
        const MS: u64 = 1;
        const S: u64 = 1_000;
        const M: u64 = 60 * S;
        const H: u64 = 60 * M;
        const D: u64 = 24 * H;
        for (text, expected_ms) in [
            ("0s", 0),
            ("30s", 30 * S),
            ("5m", 5 * M),
            ("90m", 90 * M),
            ("1d", D),
            ("1day", D),
            ("2h 30m", 2 * H + 30 * M),
            ("2h30m", 2 * H + 30 * M),
            (" 2 h  30 min ", 2 * H + 30 * M),
            ("30m 2h", 2 * H + 30 * M),
            ("1m 1m", 2 * M),
            ("1.5h", 90 * M),
            ("1.5d", 36 * H),
            ("0.1s", 100 * MS),
            ("250ms", 250 * MS),
            ("1000us", MS),
            ("1000µs", MS),
            ("1000000ns", MS),
            ("1month", 2_630_016 * S),
            ("1M", 2_630_016 * S),
            ("1y", 31_557_600 * S),
            ("1year 2months 3weeks 4days", (31_557_600 + 2 * 2_630_016) * S + 25 * D),
            ("86400s", D),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(expected_ms)), "{text}");
        }
        let units = [
            ("nanos nsec ns", 0.000_000_001),
            ("usec us µs", 0.000_001),
            ("millis msec ms", 0.001),
            ("seconds second secs sec s", 1.0),
            ("minutes minute min mins m", 60.0),
            ("hours hour hr hrs h", 3_600.0),
            ("days day d", 86_400.0),
            ("weeks week wk wks w", 604_800.0),
            ("months month M", MONTH_S),
            ("years year yr yrs y", YEAR_S),
        ];
        for (name, length_s) in units.iter().flat_map(|(names, s)| names.split(' ').map(move |name| (name, *s))) {
            let expected = Duration::from_secs_f64(7.0 * length_s);
            assert_eq!(parse_duration(&format!("7{name}")), Some(expected), "{name}");
        }
    }

    #[test]
    fn what_is_no_duration() {
        let bad = [
            "",
            " ",
            "5",
            "s",
            "soon",
            "-5s",
            "+5s",
            "5 parsecs",
            "1h,",
            "1h, 2m",
            "1h ago",
            "1:30",
            "PT5M",
            "1.s",
            ".",
        ];
        let too_long = ["99999999999999999999y", "1e9s"];
        for text in bad.into_iter().chain(too_long) {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_duration_that_is_written_is_read_again() {
        for (seconds, text) in [
            (0.0, "0s"),
            (0.25, "250ms"),
            (90.0, "1m 30s"),
            (86_400.0, "1d"),
            (3_600.0 * 25.0, "1d 1h"),
            (86_400.0 * 400.0, "400d"),
        ] {
            let duration = Duration::from_secs_f64(seconds);
            assert_eq!(format_duration(duration), text);
            assert_eq!(parse_duration(text), Some(duration));
        }
        assert_eq!(format_duration(Duration::MAX), format!("{}s", u64::MAX));
    }

    #[test]
    fn times_in_headers_are_those_of_http() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn times_are_rfc_3339_to_the_second() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (1_518_563_312, "2018-02-13T23:08:32Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(unix_s), text);
            assert_eq!(parse_rfc3339(text), Some(unix_s));
        }
        assert!(rfc3339(u64::MAX).starts_with("9999-12-30"));
    }
}
