//! For terminals without Unicode: what is drawn, in ASCII.

use ratatui::buffer::Buffer;

/// What stands for the characters that this program draws itself.
const PLAIN: [(&str, &str); 20] = [
    ("│", "|"),
    ("─", "-"),
    ("┌", "+"),
    ("┐", "+"),
    ("└", "+"),
    ("┘", "+"),
    ("…", "~"),
    ("★", "*"),
    ("▏", "_"),
    ("▁", "."),
    ("▂", "."),
    ("▃", ":"),
    ("▄", ":"),
    ("▅", "-"),
    ("▆", "="),
    ("▇", "+"),
    ("█", "#"),
    ("’", "'"),
    ("–", "-"),
    ("\u{a0}", " "),
];

/// Whether the user's locale says that the terminal has no Unicode. Where nothing is said, it has: systems without a locale are
/// looked at from terminals that have one.
pub fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    set.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        !locale.contains("utf-8") && !locale.contains("utf8")
    })
}

/// Replaces every character beyond ASCII. Columns stay where they are.
pub fn replace(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if !cell.symbol().is_ascii() {
            let plain = PLAIN.iter().find(|(known, _)| *known == cell.symbol()).map_or("?", |(_, plain)| plain);
            cell.set_symbol(plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn everything_is_ascii_and_stays_in_its_place() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 20, 1));
        buffer.set_string(0, 0, "★ Grüße 中文…│▁█", Style::new());
        replace(&mut buffer);
        let text: String = buffer.content.iter().map(|cell| cell.symbol()).collect();
        assert_eq!(text, "* Gr??e ? ? ~|.#    ");
    }

    #[test]
    fn the_locale_decides() {
        let wanted = |set: &[(&str, &str)]| {
            is_wanted(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
        };
        assert!(!wanted(&[]) && !wanted(&[("LANG", "")]) && !wanted(&[("LANG", "de_DE.UTF-8")]));
        assert!(!wanted(&[("LANG", "C.utf8")]));
        assert!(wanted(&[("LANG", "C")]) && wanted(&[("LANG", "POSIX")]) && wanted(&[("LANG", "de_DE.ISO-8859-1")]));
        assert!(wanted(&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")]));
        assert!(!wanted(&[("LANG", "C"), ("LC_CTYPE", "en_GB.UTF-8")]));
    }
}
