//! Plots of players as SVG, drawn by the server so that they need no script. Every plot has a text alternative. Plots
//! within a page contain no styles, which the page's policy forbids: they use the stylesheet's classes.

use std::fmt::Write;

use crate::store::history::{History, Point, Range};
use crate::times::rfc3339;

/// Sizes of the small and the large plot; the large one has room for labels at the left and below.
const SMALL: Frame = Frame { width: 96.0, height: 20.0, left: 0.0, bottom: 0.0 };
const LARGE: Frame = Frame { width: 480.0, height: 128.0, left: 32.0, bottom: 18.0 };
/// The most points drawn, about one per unit of width; more are drawn as means.
const SMALL_POINTS: u64 = 48;
const LARGE_POINTS: u64 = 336;
/// A gap of this many points is drawn as a gap.
const GAP: u64 = 2;

struct Frame {
    width: f64,
    height: f64,
    left: f64,
    bottom: f64,
}

/// The small plot in a table's row: one server's last day.
pub fn sparkline(history: &History) -> String {
    let drawn = Drawn::new(history, SMALL_POINTS);
    let mut out = open(&SMALL, "spark", &format!("Players {}", in_the_last(Range::Day)), history);
    drawn.lines(&SMALL, &mut out);
    out.push_str("</svg>");
    out
}

/// Players of a server or of a whole game, with axes, for a page. The title is text, whatever is in it.
pub fn plot(history: &History, title: &str) -> String {
    large(history, title, "")
}

/// The same as an image of its own, with colours for light and dark pages.
pub fn image(history: &History, title: &str) -> String {
    let style = "<style>.line{fill:none;stroke:#0a5a87;stroke-width:1.5;stroke-linejoin:round}\
                 .grid,.tick{stroke:#8888}text{fill:#5a6270;font:11px system-ui,sans-serif}\
                 @media(prefers-color-scheme:dark){.line{stroke:#74c3f2}text{fill:#9ca6b3}}\
                 @media(max-width:25rem){text{font-size:15px}}</style>";
    large(history, title, style)
}

fn large(history: &History, title: &str, style: &str) -> String {
    let drawn = Drawn::new(history, LARGE_POINTS);
    let mut out = open(&LARGE, "plot", title, history);
    out.push_str(style);
    drawn.axes(&LARGE, &mut out);
    drawn.lines(&LARGE, &mut out);
    out.push_str("</svg>");
    out
}

/// The start of a picture, with its text alternative.
fn open(frame: &Frame, class: &str, title: &str, history: &History) -> String {
    let (title, description) = (escaped(title), words(history));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" viewBox=\"0 0 {} {}\" role=\"img\" \
         aria-label=\"{title}: {description}\"><title>{title}</title><desc>{description}</desc>",
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
    let (least, most) = players().fold((last, last), |(least, most), players| (least.min(players), most.max(players)));
    let mean = sum / f64::from(number);
    format!("between {} and {}, {} on average, {} last.", tenths(least), tenths(most), tenths(mean), tenths(last))
}

/// What a plot shows: means over equal steps of the range.
struct Drawn<'a> {
    history: &'a History,
    /// The middle of a step, in seconds from the range's start, and the players.
    steps: Vec<(u64, f64)>,
    step_s: u64,
    top: f64,
}

impl Drawn<'_> {
    fn new(history: &History, points_max: u64) -> Drawn<'_> {
        let step_s = ((history.to_s - history.from_s.min(history.to_s)) / points_max).max(1);
        let step_of = |point: &Point| point.at_s.saturating_sub(history.from_s) / step_s;
        let known: Vec<&Point> = history.points.iter().filter(|point| point.players_x10.is_some()).collect();
        let steps: Vec<(u64, f64)> = known
            .chunk_by(|a, b| step_of(a) == step_of(b))
            .map(|points| {
                let sum: f64 = points.iter().filter_map(|point| point.players()).sum();
                let step = points.first().map_or(0, |point| step_of(point));
                (step * step_s + step_s / 2, sum / points.len() as f64)
            })
            .collect();
        let most = steps.iter().map(|(_, players)| *players).fold(0.0, f64::max);
        Drawn { history, steps, step_s, top: nice(most) }
    }

    fn x(&self, frame: &Frame, offset_s: u64) -> f64 {
        let range_s = (self.history.to_s - self.history.from_s.min(self.history.to_s)).max(1);
        frame.left + (frame.width - frame.left) * offset_s.min(range_s) as f64 / range_s as f64
    }

    fn y(&self, frame: &Frame, players: f64) -> f64 {
        let room = frame.height - frame.bottom - 2.0;
        1.0 + room * (1.0 - players / self.top)
    }

    /// One line for each stretch without a gap.
    fn lines(&self, frame: &Frame, out: &mut String) {
        let pause_s = GAP * self.step_s + self.step_s / 2;
        for stretch in self.steps.chunk_by(|a, b| b.0 - a.0 <= pause_s) {
            out.push_str("<polyline class=\"line\" points=\"");
            // A single point is drawn as wide as its step; otherwise it would be invisible.
            let first = stretch.first().map(|(at_s, players)| (at_s.saturating_sub(self.step_s / 2), *players));
            let last = stretch.last().map(|(at_s, players)| (at_s + self.step_s / 2, *players));
            for (at_s, players) in first.into_iter().chain(stretch.iter().copied()).chain(last) {
                let _ = write!(out, "{:.1},{:.1} ", self.x(frame, at_s), self.y(frame, players));
            }
            out.truncate(out.trim_end().len());
            out.push_str("\"/>");
        }
    }

    /// Lines and numbers: zero, half and the maximum at the left, times below.
    fn axes(&self, frame: &Frame, out: &mut String) {
        for part in [0.0, 0.5, 1.0] {
            let (players, left, right) = (self.top * part, frame.left, frame.width);
            let y = self.y(frame, players);
            let _ = write!(out, "<line class=\"grid\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>");
            let (x, y) = (left - 4.0, (y + 4.0).max(10.0));
            let text = tenths(players);
            let _ = write!(out, "<text class=\"count\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>");
        }
        let bottom = frame.height - frame.bottom;
        for at_s in self.ticks() {
            let x = self.x(frame, at_s - self.history.from_s);
            let text = self.tick_text(at_s);
            let _ = write!(
                out,
                "<line class=\"tick\" x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{}\"/>",
                bottom + 4.0
            );
            let middle = (frame.left + 20.0..frame.width - 20.0).contains(&x);
            if middle {
                let y = frame.height - 3.0;
                let _ = write!(out, "<text class=\"time\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>");
            }
        }
    }

    /// About seven multiples of a round time.
    fn ticks(&self) -> impl Iterator<Item = u64> {
        let (from_s, to_s) = (self.history.from_s, self.history.to_s);
        let range_s = to_s - from_s.min(to_s);
        let rounds = [3_600, 10_800, 86_400, 5 * 86_400, 30 * 86_400, 60 * 86_400];
        let round_s = rounds.into_iter().find(|round_s| range_s / round_s <= 9).unwrap_or(365 * 86_400);
        (from_s.next_multiple_of(round_s)..=to_s).step_by(round_s as usize)
    }

    /// A time of day within a day, a date otherwise.
    fn tick_text(&self, at_s: u64) -> String {
        let text = rfc3339(at_s);
        let within_a_day = self.history.to_s - self.history.from_s.min(self.history.to_s) <= 86_400;
        let part = if within_a_day { 11..16 } else { 5..10 };
        text.get(part).unwrap_or_default().to_string()
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

/// With one digit behind the point, or none where it is zero.
fn tenths(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map(str::to_string).unwrap_or(text)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML cannot represent these.
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
        let points = points.into_iter().map(|(offset_s, players_x10)| Point {
            at_s: from_s + offset_s,
            players_x10,
            count_x100: 100,
        });
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

    #[test]
    fn a_day_in_a_row_with_its_words() {
        let day = history((0..1_440).map(|minute| (minute * 60, Some(if minute < 720 { 20 } else { 70 }))), 86_400);
        let svg = sparkline(&day);
        let (texts, lines) = parsed(&svg);
        assert_eq!(texts[..2], ["Players in the last 24 hours", "between 2 and 7, 4.5 on average, 7 last."]);
        assert_eq!(lines, 1);
        assert!(svg.contains("role=\"img\"") && svg.contains("aria-label=\"Players in the last 24 hours: between 2"));
        assert!(svg.len() < 1_500, "{} bytes in every row", svg.len());
    }

    #[test]
    fn pauses_split_the_line_and_unknown_is_not_zero() {
        let minutes = (0..1_440).filter(|minute| !(300..600).contains(minute));
        let day = history(minutes.map(|minute| (minute * 60, Some(10))), 86_400);
        assert_eq!(parsed(&sparkline(&day)).1, 2);
        let nothing = sparkline(&history([], 86_400));
        assert_eq!(parsed(&nothing), (vec!["Players in the last 24 hours".into(), "nothing was counted.".into()], 0));
        let unknown = history((0..10).map(|minute| (minute * 60, None)), 86_400);
        assert_eq!(parsed(&sparkline(&unknown)).1, 0);
        assert_eq!(parsed(&sparkline(&history([(3_600, Some(10))], 86_400))).1, 1, "a single point is seen");
        parsed(&plot(&History { from_s: 5, to_s: 5, points: Vec::new() }, "no time at all"));
        assert!(image(&day, "a picture").contains("<style>.line{") && parsed(&image(&day, "a picture")).1 == 2);
    }

    #[test]
    fn a_week_has_axes_and_a_name_that_stays_text() {
        let week = history((0..2_016).map(|step| (step * 300, Some((step % 97) as u32 * 10))), 7 * 86_400);
        let svg = plot(&week, "<b>\"Bob\" & co</b>\u{1}");
        assert!(svg.contains("<title>&lt;b&gt;&quot;Bob&quot; &amp; co&lt;/b&gt; </title>"), "{svg}");
        let (texts, lines) = parsed(&svg);
        assert_eq!(lines, 1);
        let days: Vec<_> = texts.iter().filter(|text| text.len() == 5 && text.contains('-')).collect();
        assert_eq!(days, ["10-10", "10-11", "10-12", "10-13", "10-14", "10-15", "10-16"]);
        for count in ["0", "50", "100"] {
            assert!(texts.iter().any(|text| text == count), "{texts:?}");
        }
    }

    #[test]
    fn scales_end_with_numbers_that_people_like() {
        let tops = [0.0, 1.0, 2.1, 7.0, 10.0, 11.0, 64.0, 350.0, 99_000.0].map(nice);
        assert_eq!(tops, [2.0, 2.0, 4.0, 8.0, 10.0, 20.0, 80.0, 400.0, 100_000.0]);
        assert_eq!(nice(f64::INFINITY), 1.0);
        assert_eq!([tenths(0.04), tenths(2.0), tenths(2.25)], ["0", "2", "2.2"]);
    }
}
