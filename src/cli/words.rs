//! Splits a command line into words, without a shell: quotes and backslashes count, nothing is expanded.

/// The words of a command line. `'…'` is literal; in `"…"` a backslash keeps one of `"\\$` and a backtick; elsewhere it keeps
/// any character.
pub fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    // None between two words: '' is a word.
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        match next {
            blank if blank.is_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or("a ' is not closed")? {
                        '\'' => break,
                        literal => word.push(literal),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or("a \" is not closed")? {
                        '"' => break,
                        '\\' => match rest.next().ok_or("a \" is not closed")? {
                            kept @ ('"' | '\\' | '$' | '`') => word.push(kept),
                            other => word.extend(['\\', other]),
                        },
                        literal => word.push(literal),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(rest.next().ok_or("nothing follows the last \\")?),
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quotes_and_backslashes_as_in_a_shell() {
        for (line, expected) in [
            ("", &[][..]),
            ("  a\tb  ", &["a", "b"]),
            ("sh -c 'echo \"$X\" >> log'", &["sh", "-c", "echo \"$X\" >> log"]),
            (r#"a"b c"d "" '' e\ f"#, &["ab cd", "", "", "e f"]),
            (r#""\"\\\n\$" \'"#, &["\"\\\\n$", "'"]),
            (r#"sh -c "echo \"$X\" \`id\`""#, &["sh", "-c", "echo \"$X\" `id`"]),
            ("$HOME ~ *; x|y", &["$HOME", "~", "*;", "x|y"]),
        ] {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
        for bad in ["'a", "a\"b", "\"\\", "a\\"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in proptest::collection::vec("[ a-z'\"\\\\$]{0,6}", 0..5)) {
            let words: Vec<String> = words;
            let quoted: Vec<_> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            prop_assert_eq!(split(&quoted.join(" ")).unwrap(), words);
        }

        #[test]
        fn never_panics(line: String) {
            let _ = split(&line);
        }
    }
}
