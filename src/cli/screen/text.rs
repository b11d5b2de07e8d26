//! Text measured in terminal cells: cut with an ellipsis, or wrapped.

use ratatui::style::Style;
use ratatui::text::Span;

const ELLIPSIS: &str = "…";

/// The width of a text in cells.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text, cut with an ellipsis if it does not fit.
pub fn cut(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_string();
    }
    let Some(room) = cells.checked_sub(width(ELLIPSIS)) else { return String::new() };
    let (fits, _) = split(text, room);
    format!("{}{ELLIPSIS}", fits.trim_end())
}

/// Lines of at most `cells`, broken between words, and inside a word that is longer than a line.
pub fn wrap(text: &str, cells: usize) -> Vec<String> {
    let cells = cells.max(1);
    let mut lines = Vec::new();
    let mut rest = text.trim_end();
    while width(rest) > cells {
        let (mut fits, _) = split(rest, cells);
        if fits.is_empty() {
            break; // a character wider than a line
        }
        let next_is_blank = rest.get(fits.len()..).is_some_and(|after| after.starts_with(' '));
        if !next_is_blank && let Some(blank) = fits.rfind(' ').filter(|at| !fits[..*at].trim().is_empty()) {
            fits = &fits[..blank];
        }
        lines.push(fits.trim_end().to_string());
        rest = rest.get(fits.len()..).unwrap_or_default().trim_start();
    }
    if !rest.is_empty() || lines.is_empty() {
        lines.push(rest.to_string());
    }
    lines
}

/// Splits off the longest start that fits into `cells`.
fn split(text: &str, cells: usize) -> (&str, &str) {
    let mut taken = 0;
    let mut bytes = 0;
    for grapheme in Span::raw(text).styled_graphemes(Style::new()) {
        taken += width(grapheme.symbol);
        if taken > cells {
            break;
        }
        bytes += grapheme.symbol.len();
    }
    text.split_at_checked(bytes).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_by_cells_with_an_ellipsis() {
        for (text, cells, shown) in [
            ("short", 5, "short"),
            ("a long name", 8, "a long…"),
            ("two words", 5, "two…"),
            ("中文服务器", 10, "中文服务器"),
            ("中文服务器", 9, "中文服务…"),
            ("中文服务器", 8, "中文服…"),
            ("e\u{301}te\u{301}s", 3, "e\u{301}t…"),
            ("anything", 1, "…"),
            ("anything", 0, ""),
        ] {
            assert_eq!(cut(text, cells), shown, "{text} in {cells}");
            assert!(width(&cut(text, cells)) <= cells);
        }
    }

    #[test]
    fn wrapped_between_words_and_inside_long_ones() {
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        assert_eq!(wrap("中文服务器", 4), ["中文", "服务", "器"]);
        assert_eq!(wrap("中文", 1), ["中文"]);
        assert_eq!(wrap("no width", 0), ["n", "o", "w", "i", "d", "t", "h"]);
    }
}
