//! Plots of players as SVG, drawn by the server so that they need no script. Every plot has a text alternative. Plots
//! within a page contain no styles, which the page's policy forbids: they use the stylesheet's classes.

use std::fmt::Write;

use crate::store::history::{History, Point, Range};
use crate::times::rfc3339;

/// Sizes of the small and the large plot; the large one has room for labels at the left and below.
const SMALL: Frame = Frame { width: 96.0, height: 20.0, left: 0.0, bottom: 0.0 };
const LARGE: Frame = Frame { width: 480.0, height: 128.0, left: 44.0, bottom: 18.0 };
/// The most points drawn, about one per unit of width; more are drawn as means.
const SMALL_POINTS: u64 = 48;
const LARGE_POINTS: u64 = 168;
/// A gap of this many points is drawn as a gap.
const GAP: u64 = 2;
/// There is no plot before this much time is covered: an hour, as far as five-minute means can tell.
const ENOUGH_S: u64 = 3_300;
/// Time zones are within this many minutes of UTC.
pub const ZONE_MAX: i32 = 14 * 60;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

struct Frame {
    width: f64,
    height: f64,
    left: f64,
    bottom: f64,
}

/// How a large plot is drawn.
#[derive(Clone, Copy, Default)]
pub struct Look<'a> {
    /// Text, whatever is in it.
    pub title: &'a str,
    /// How many players the server has room for.
    pub size: Option<u16>,
    /// The reader's time zone, in minutes east of UTC.
    pub zone: i32,
    /// Whether the plot carries its values, for a script that shows them under the pointer.
    pub values: bool,
}

/// Whether there is enough to see.
pub fn is_enough(history: &History) -> bool {
    let mut known = history.points.iter().filter(|point| point.players_x10.is_some()).map(|point| point.at_s);
    let first = known.next();
    first.zip(known.next_back()).is_some_and(|(first, last)| last.saturating_sub(first) >= ENOUGH_S)
}

/// The small plot in a table's row: one server's last day. Its height is the server's size, so that rows can be compared.
pub fn sparkline(history: &History, size: Option<u16>) -> String {
    let drawn = Drawn::new(history, SMALL_POINTS, &Look::default());
    let drawn = Drawn { top: size.filter(|size| *size > 0).map_or(drawn.top, f64::from), ..drawn };
    let title = format!("Players {}", in_the_last(Range::Day));
    let mut out = open(&SMALL, "spark", &title, history, "");
    out.push_str(&format!("<title>{title}: {}</title>", words(history)));
    drawn.lines(&SMALL, &mut out);
    out.push_str("</svg>");
    out
}

/// Players of a server or of a whole game, with axes, for a page.
pub fn plot(history: &History, look: &Look<'_>) -> String {
    large(history, look, "")
}

/// The same as an image of its own, with colours for light and dark pages.
pub fn image(history: &History, look: &Look<'_>) -> String {
    let style = "<style>.line{fill:none;stroke:#0a5a87;stroke-width:1.5;stroke-linejoin:round}.band{fill:#0a5a87;opacity:.25}\
                 .grid,.tick{stroke:#8888}.size{stroke:#a02f22;stroke-dasharray:4 3}\
                 text{fill:#5a6270;font:11px system-ui,sans-serif}\
                 @media(prefers-color-scheme:dark){.line{stroke:#74c3f2}.band{fill:#74c3f2}.size{stroke:#f39b8f}\
                 text{fill:#9ca6b3}}@media(max-width:25rem){text{font-size:15px}}</style>";
    large(history, look, style)
}

fn large(history: &History, look: &Look<'_>, style: &str) -> String {
    let drawn = Drawn::new(history, LARGE_POINTS, look);
    let values = if look.values { drawn.values(&LARGE, look.zone) } else { String::new() };
    let mut out = open(&LARGE, "plot", look.title, history, &values);
    if !look.values {
        let _ = write!(out, "<title>{}</title>", escaped(look.title)); // a tooltip would hide the values
    }
    out.push_str(style);
    drawn.axes(&LARGE, look, &mut out);
    if is_enough(history) {
        drawn.bands(&LARGE, &mut out);
        drawn.lines(&LARGE, &mut out);
    } else {
        let (x, y) = (LARGE.left + 8.0, LARGE.height / 2.0);
        let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">There is a plot after an hour of data.</text>");
    }
    out.push_str("</svg>");
    out
}

/// The start of a picture, with its text alternative.
fn open(frame: &Frame, class: &str, title: &str, history: &History, values: &str) -> String {
    let (title, description) = (escaped(title), words(history));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" viewBox=\"0 0 {} {}\" role=\"img\" \
         aria-label=\"{title}: {description}\"{values}>",
        frame.width, frame.height
    )
}

/// A range as a title ends with it.
pub fn in_the_last(range: Range) -> &'static str {
    match range {
        Range::Day => "in the last 24 hours",
        Range::Week => "in the last 7 days",
        Range::Month => "in the last 30 days",
        Range::Year => "in the last year",
    }
}

/// A history in half a sentence, without characters that need escaping.
pub fn words(history: &History) -> String {
    let players = || history.points.iter().filter_map(Point::players);
    let Some(last) = players().next_back() else { return "nothing was counted.".into() };
    let (number, sum) = players().fold((0u32, 0.0), |(number, sum), players| (number + 1, sum + players));
    let least = history.points.iter().filter_map(Point::least).fold(last, f64::min);
    let most = history.points.iter().filter_map(Point::most).fold(last, f64::max);
    match (least.round(), most.round(), sum / f64::from(number)) {
        (_, 0.0, _) => "nobody played.".into(),
        (least, most, _) if least == most => format!("always {most}."),
        (least, most, mean) => {
            let mean = if mean < 0.5 { "fewer than 1".into() } else { mean.round().to_string() };
            format!("between {least} and {most}, {mean} on average, {} last.", last.round())
        }
    }
}

/// A part of the range: when, counted from its start, and its players.
#[derive(Clone, Copy)]
struct Step {
    /// The middle.
    at_s: u64,
    mean: f64,
    least: f64,
    most: f64,
}

/// What a plot shows: equal steps of the range.
struct Drawn<'a> {
    history: &'a History,
    steps: Vec<Step>,
    step_s: u64,
    top: f64,
}

impl<'a> Drawn<'a> {
    fn new(history: &'a History, points_max: u64, look: &Look<'_>) -> Drawn<'a> {
        let step_s = ((history.to_s - history.from_s.min(history.to_s)) / points_max).max(1);
        let step_of = |point: &Point| point.at_s.saturating_sub(history.from_s) / step_s;
        let known: Vec<&Point> = history.points.iter().filter(|point| point.players_x10.is_some()).collect();
        let step = |points: &[&Point]| {
            let sum: f64 = points.iter().filter_map(|point| point.players()).sum();
            let number = points.first().map_or(0, |point| step_of(point));
            let mean = sum / points.len() as f64;
            let least = points.iter().filter_map(|point| point.least()).fold(mean, f64::min);
            let most = points.iter().filter_map(|point| point.most()).fold(mean, f64::max);
            Step { at_s: number * step_s + step_s / 2, mean, least, most }
        };
        let steps: Vec<Step> = known.chunk_by(|a, b| step_of(a) == step_of(b)).map(step).collect();
        let most = steps.iter().map(|step| step.most).fold(look.size.map_or(0.0, f64::from), f64::max);
        Drawn { history, steps, step_s, top: nice(most) }
    }

    fn x(&self, frame: &Frame, offset_s: u64) -> f64 {
        let range_s = (self.history.to_s - self.history.from_s.min(self.history.to_s)).max(1);
        frame.left + (frame.width - frame.left) * offset_s.min(range_s) as f64 / range_s as f64
    }

    fn y(&self, frame: &Frame, players: f64) -> f64 {
        let room = frame.height - frame.bottom - 2.0;
        1.0 + room * (1.0 - (players / self.top).min(1.0))
    }

    /// The steps in stretches without a gap. A single step is drawn as wide as it is; otherwise it would be invisible.
    fn stretches(&self) -> impl Iterator<Item = Vec<Step>> {
        let pause_s = GAP * self.step_s + self.step_s / 2;
        let half_s = self.step_s / 2;
        self.steps.chunk_by(move |a, b| b.at_s - a.at_s <= pause_s).map(move |stretch| {
            let first = stretch.first().map(|step| Step { at_s: step.at_s.saturating_sub(half_s), ..*step });
            let last = stretch.last().map(|step| Step { at_s: step.at_s + half_s, ..*step });
            first.into_iter().chain(stretch.iter().copied()).chain(last).collect()
        })
    }

    /// The mean: one line for each stretch.
    fn lines(&self, frame: &Frame, out: &mut String) {
        for stretch in self.stretches() {
            let points = stretch.iter().map(|step| (step.at_s, step.mean));
            let _ = write!(out, "<polyline class=\"line\" points=\"{}\"/>", self.places(frame, points));
        }
    }

    /// From the least to the most.
    fn bands(&self, frame: &Frame, out: &mut String) {
        for stretch in self.stretches() {
            let above = stretch.iter().map(|step| (step.at_s, step.most));
            let below = stretch.iter().rev().map(|step| (step.at_s, step.least));
            let places = self.places(frame, above.chain(below));
            let _ = write!(out, "<polygon class=\"band\" points=\"{places}\"/>");
        }
    }

    fn places(&self, frame: &Frame, points: impl Iterator<Item = (u64, f64)>) -> String {
        let mut out = String::new();
        for (at_s, players) in points {
            let _ = write!(out, "{:.1},{:.1} ", self.x(frame, at_s), self.y(frame, players));
        }
        out.truncate(out.trim_end().len());
        out
    }

    /// The values for a script: where the plot begins, the times, and mean, least and most at each.
    fn values(&self, frame: &Frame, zone: i32) -> String {
        let (from_s, to_s) = (self.history.from_s, self.history.to_s);
        let mut out =
            format!(" data-left=\"{}\" data-from=\"{from_s}\" data-to=\"{to_s}\" data-zone=\"{zone}\"", frame.left);
        out.push_str(" data-values=\"");
        for Step { at_s, mean, least, most } in &self.steps {
            let _ = write!(out, "{at_s},{},{},{} ", mean.round(), least.round(), most.round());
        }
        out.truncate(out.trim_end().len());
        out.push('"');
        out
    }

    /// Lines and numbers: zero, half and the maximum at the left, the server's size, times below.
    fn axes(&self, frame: &Frame, look: &Look<'_>, out: &mut String) {
        let (left, right) = (frame.left, frame.width);
        for part in [0.0, 0.5, 1.0] {
            let players = self.top * part;
            let y = self.y(frame, players);
            let _ = write!(out, "<line class=\"grid\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>");
            let (x, y, text) = (left - 4.0, (y + 4.0).max(10.0), players.round());
            let _ = write!(out, "<text class=\"count\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>");
        }
        if let Some(size) = look.size.filter(|size| *size > 0) {
            let y = self.y(frame, size.into());
            let _ = write!(out, "<line class=\"size\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>");
            let (x, y) = (right - 4.0, if y < 14.0 { y + 12.0 } else { y - 4.0 });
            let _ = write!(out, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">full at {size}</text>");
        }
        let bottom = frame.height - frame.bottom;
        let (x, y, zone) = (left - 4.0, frame.height - 3.0, zone_name(look.zone));
        let _ = write!(out, "<text class=\"zone\" x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{zone}</text>");
        for at_s in self.ticks(look.zone) {
            let x = self.x(frame, at_s - self.history.from_s);
            let _ = write!(
                out,
                "<line class=\"tick\" x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{}\"/>",
                bottom + 4.0
            );
            if (left + 20.0..right - 18.0).contains(&x) {
                let text = self.tick_text(local_s(at_s, look.zone));
                let _ = write!(out, "<text class=\"time\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>");
            }
        }
    }

    /// About seven multiples of a round time, in the reader's time zone.
    fn ticks(&self, zone: i32) -> impl Iterator<Item = u64> {
        let (from_s, to_s) = (self.history.from_s, self.history.to_s);
        let range_s = to_s - from_s.min(to_s);
        let rounds = [3_600, 10_800, 86_400, 5 * 86_400, 30 * 86_400, 60 * 86_400];
        let round_s = rounds.into_iter().find(|round_s| range_s / round_s <= 9).unwrap_or(365 * 86_400);
        let first_s = local_s(from_s, zone).next_multiple_of(round_s);
        let first_s = from_s + (first_s - local_s(from_s, zone));
        (first_s..=to_s).step_by(round_s as usize)
    }

    /// A time of day within a day, a date otherwise.
    fn tick_text(&self, at_s: u64) -> String {
        let text = rfc3339(at_s);
        if self.history.to_s - self.history.from_s.min(self.history.to_s) <= 86_400 {
            return text.get(11..16).unwrap_or_default().to_string();
        }
        let number = |part: Option<&str>| part.and_then(|part| part.parse::<usize>().ok()).unwrap_or(0);
        let month = number(text.get(5..7)).checked_sub(1).and_then(|month| MONTHS.get(month));
        format!("{} {}", month.copied().unwrap_or_default(), number(text.get(8..10)))
    }
}

/// A time as a clock in a time zone shows it.
fn local_s(at_s: u64, zone: i32) -> u64 {
    at_s.saturating_add_signed(i64::from(zone) * 60)
}

/// `UTC`, `UTC+2`, `UTC-3:30`.
fn zone_name(zone: i32) -> String {
    let (hours, minutes) = (zone.abs() / 60, zone.abs() % 60);
    match (zone, minutes) {
        (0, _) => "UTC".into(),
        (_, 0) => format!("UTC{}{hours}", if zone < 0 { '-' } else { '+' }),
        _ => format!("UTC{}{hours}:{minutes:02}", if zone < 0 { '-' } else { '+' }),
    }
}

/// The next round number, for the end of a scale.
fn nice(most: f64) -> f64 {
    let mut unit = 1.0;
    while most.is_finite() {
        for step in [2.0, 4.0, 6.0, 8.0, 10.0] {
            if most <= unit * step {
                return unit * step;
            }
        }
        unit *= 10.0;
    }
    1.0
}

/// Text as XML. Characters that XML cannot represent become spaces.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use quick_xml::events::Event;

    fn history(points: impl IntoIterator<Item = (u64, Option<u32>)>, range_s: u64) -> History {
        let from_s = 1_760_000_000;
        let points = points.into_iter().map(|(offset_s, players_x10)| Point::new(from_s + offset_s, players_x10, 100));
        History { from_s, to_s: from_s + range_s, points: points.collect() }
    }

    /// All texts and the number of lines, from a real XML parser; no styles, no scripts.
    fn parsed(svg: &str) -> (Vec<String>, usize) {
        let mut reader = quick_xml::Reader::from_str(svg);
        let (mut texts, mut lines, mut depth) = (Vec::new(), 0, 0);
        loop {
            match reader.read_event().unwrap_or_else(|error| panic!("{error}: {svg}")) {
                Event::Start(start) => {
                    depth += 1;
                    assert!(start.attributes().all(|attribute| attribute.unwrap().key.as_ref() != "style"));
                    assert_ne!(start.name().as_ref(), "script");
                }
                Event::Empty(empty) => {
                    lines += usize::from(empty.name().as_ref() == "polyline");
                    assert!(empty.attributes().all(|attribute| attribute.unwrap().key.as_ref() != "style"));
                }
                Event::End(_) => depth -= 1,
                Event::Text(text) => texts.push(text.to_string()),
                Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!(depth, 0);
        (texts, lines)
    }

    fn titled(title: &str) -> Look<'_> {
        Look { title, ..Look::default() }
    }

    #[test]
    fn a_day_in_a_row_with_its_words() {
        let day = history((0..1_440).map(|minute| (minute * 60, Some(if minute < 720 { 20 } else { 70 }))), 86_400);
        let svg = sparkline(&day, Some(14));
        let (texts, lines) = parsed(&svg);
        assert_eq!(texts, ["Players in the last 24 hours: between 2 and 7, 5 on average, 7 last."]);
        assert_eq!(lines, 1);
        assert!(svg.contains("role=\"img\"") && svg.contains("aria-label=\"Players in the last 24 hours: between 2"));
        assert!(svg.len() < 1_500, "{} bytes in every row", svg.len());
        assert!(svg.contains("96.0,10.0"), "7 of 14 is half of the height: {svg}");
        assert!(sparkline(&day, Some(7)).contains("96.0,1.0"), "full is the top");
    }

    #[test]
    fn words_are_about_whole_players_and_say_nothing_odd() {
        let of = |players: &[u32]| words(&history(players.iter().zip(0..).map(|(x10, at)| (at, Some(*x10))), 10));
        assert_eq!(of(&[0, 0, 0]), "nobody played.");
        assert_eq!(of(&[30, 30]), "always 3.");
        assert_eq!(of(&[0, 0, 0, 0, 12]), "between 0 and 1, fewer than 1 on average, 1 last.");
        assert_eq!(of(&[26, 91]), "between 3 and 9, 6 on average, 9 last.");
        assert_eq!(of(&[]), "nothing was counted.");
    }

    #[test]
    fn pauses_split_the_line_and_unknown_is_not_zero() {
        let minutes = (0..1_440).filter(|minute| !(300..600).contains(minute));
        let day = history(minutes.map(|minute| (minute * 60, Some(10))), 86_400);
        assert_eq!(parsed(&sparkline(&day, None)).1, 2);
        let nothing = sparkline(&history([], 86_400), None);
        assert_eq!(parsed(&nothing), (vec!["Players in the last 24 hours: nothing was counted.".into()], 0));
        let unknown = history((0..10).map(|minute| (minute * 60, None)), 86_400);
        assert_eq!(parsed(&sparkline(&unknown, None)).1, 0);
        assert_eq!(parsed(&sparkline(&history([(3_600, Some(10))], 86_400), None)).1, 1, "a single point is seen");
        parsed(&plot(&History { from_s: 5, to_s: 5, points: Vec::new() }, &titled("no time at all")));
        let image = image(&day, &titled("a picture"));
        assert!(image.contains("<style>.line{") && parsed(&image).1 == 2 && image.matches("<polygon").count() == 2);
    }

    #[test]
    fn there_is_no_plot_before_an_hour_of_data() {
        let minutes = |minutes: u64| history((0..minutes).map(|minute| (minute * 60, Some(10))), 86_400);
        assert!(!is_enough(&minutes(0)) && !is_enough(&minutes(1)) && !is_enough(&minutes(50)));
        assert!(is_enough(&minutes(60)));
        let early = image(&minutes(50), &titled("early"));
        assert!(early.contains("after an hour of data") && !early.contains("<polyline"), "{early}");
        let unknown = history((0..100).map(|minute| (minute * 60, None)), 86_400);
        assert!(!is_enough(&unknown));
    }

    #[test]
    fn a_week_has_axes_and_a_name_that_stays_text() {
        let week = history((0..2_016).map(|step| (step * 300, Some((step % 97) as u32 * 10))), 7 * 86_400);
        let svg = plot(&week, &titled("<b>\"Bob\" & co</b>\u{1}"));
        assert!(svg.contains("<title>&lt;b&gt;&quot;Bob&quot; &amp; co&lt;/b&gt; </title>"), "{svg}");
        let (texts, lines) = parsed(&svg);
        assert_eq!(lines, 1);
        let days: Vec<_> = texts.iter().filter(|text| text.starts_with("Oct")).collect();
        assert_eq!(days, ["Oct 10", "Oct 11", "Oct 12", "Oct 13", "Oct 14", "Oct 15", "Oct 16"]);
        for count in ["0", "50", "100", "UTC"] {
            assert!(texts.iter().any(|text| text == count), "{texts:?}");
        }
    }

    #[test]
    fn a_band_reaches_from_the_least_to_the_most_and_a_line_is_the_size() {
        let mut week = history((0..200).map(|step| (step * 3_024, Some(50))), 7 * 86_400);
        for point in &mut week.points {
            (point.least_x10, point.most_x10) = (Some(20), Some(80));
        }
        let look = Look { title: "x", size: Some(10), zone: -210, values: true };
        let svg = plot(&week, &look);
        // The top is 10, the room 108: 8 players are at 1 + 108 / 5, 2 at 1 + 108 * 4 / 5.
        let band = svg.split("class=\"band\" points=\"").nth(1).unwrap();
        assert!(band.starts_with("44.0,22.6 ") && band.contains(",87.4"), "{band}");
        assert!(svg.contains("class=\"line\" points=\"44.0,55.0 "), "{svg}");
        assert!(svg.contains("class=\"size\" x1=\"44\" y1=\"1.0\"") && svg.contains(">full at 10<"), "{svg}");
        assert!(svg.contains("data-values=\"1800,5,2,8 "), "{svg}");
        assert!(svg.contains("data-zone=\"-210\"") && svg.contains(">UTC-3:30<") && !svg.contains("<title"), "{svg}");
        assert_eq!([zone_name(0), zone_name(120), zone_name(-60)], ["UTC", "UTC+2", "UTC-1"]);
    }

    #[test]
    fn ticks_are_at_midnight_where_the_reader_is() {
        let week = history([], 7 * 86_400);
        let drawn = Drawn::new(&week, LARGE_POINTS, &Look::default());
        for zone in [0, 120, -210, ZONE_MAX, -ZONE_MAX] {
            let ticks: Vec<u64> = drawn.ticks(zone).collect();
            assert_eq!(ticks.len(), 7, "{zone}");
            assert!(ticks.iter().all(|at_s| local_s(*at_s, zone).is_multiple_of(86_400)), "{zone}");
        }
    }

    #[test]
    fn scales_end_with_numbers_that_people_like() {
        let tops = [0.0, 1.0, 2.1, 7.0, 10.0, 11.0, 64.0, 350.0, 99_000.0].map(nice);
        assert_eq!(tops, [2.0, 2.0, 4.0, 8.0, 10.0, 20.0, 80.0, 400.0, 100_000.0]);
        assert_eq!(nice(f64::INFINITY), 1.0);
    }
}
