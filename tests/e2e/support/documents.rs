//! The project's documents, README.md and the book in docs/: their text, their blocks of code, and the commands in them.

use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A document, by its path from the root of the repository.
pub struct Document {
    pub name: String,
    pub text: String,
}

/// A block of code.
pub struct Block {
    pub language: String,
    /// Without the indentation of its list.
    pub text: String,
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            out.push(path);
        }
    }
}

/// All documents: those of the root, and the book.
pub fn documents() -> Vec<Document> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    collect(&root().join("docs"), &mut paths);
    paths.sort();
    assert!(paths.len() > 30, "{paths:?}");
    let document = |path: &PathBuf| Document {
        name: path.strip_prefix(root()).unwrap().to_str().unwrap().to_string(),
        text: std::fs::read_to_string(path).unwrap(),
    };
    paths.iter().map(document).collect()
}

impl Document {
    /// What users are told. CHANGELOG.md is about the past.
    pub fn is_manual(&self) -> bool {
        self.name != "CHANGELOG.md"
    }

    /// The text without its blocks of code, and those.
    fn parts(&self) -> (String, Vec<Block>) {
        let (mut prose, mut blocks): (String, Vec<Block>) = Default::default();
        let mut open: Option<(usize, Block)> = None;
        for line in self.text.lines() {
            let bare = line.trim_start();
            match (open.take(), bare.strip_prefix("```")) {
                (None, Some(language)) => {
                    let block = Block { language: language.trim().into(), text: String::new() };
                    open = Some((line.len() - bare.len(), block));
                }
                (None, None) => prose += &format!("{line}\n"),
                (Some((_, block)), Some("")) => blocks.push(block),
                (Some((indent, mut block)), _) => {
                    block.text += &format!("{}\n", line.get(indent.min(line.len() - bare.len())..).unwrap());
                    open = Some((indent, block));
                }
            }
        }
        assert!(open.is_none(), "{}: a block of code does not end", self.name);
        (prose, blocks)
    }

    pub fn prose(&self) -> String {
        self.parts().0
    }

    pub fn blocks(&self, language: &str) -> Vec<Block> {
        self.parts().1.into_iter().filter(|block| block.language == language).collect()
    }

    /// The lines that a shell is to run: of `sh` all, of `console` those after a prompt. Each as one line.
    pub fn command_lines(&self) -> Vec<String> {
        let of_sh = self.blocks("sh").into_iter().flat_map(|block| lines(&block.text));
        let of_console = self.blocks("console").into_iter().flat_map(|block| lines(&block.text));
        let prompted = of_console.filter_map(|line| Some(line.strip_prefix("$ ")?.to_string()));
        of_sh.chain(prompted).filter(|line| !line.trim().is_empty() && !line.starts_with('#')).collect()
    }

    /// What stands between backquotes in the text.
    pub fn quoted(&self) -> Vec<String> {
        let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.prose().split('`').skip(1).step_by(2).map(unwrapped).collect()
    }
}

fn lines(text: &str) -> Vec<String> {
    text.replace("\\\n", " ").lines().map(|line| line.trim().to_string()).collect()
}

/// The words of each command of a line, as a shell splits them: quotes are removed, comments and redirections end a command.
pub fn commands_in(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word): (Vec<Vec<String>>, Vec<String>, Option<String>) = Default::default();
    let (mut quote, mut depth, mut is_redirected) = (None, 0, false);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('$', None) if rest.peek() == Some(&'(') => {
                depth += 1;
                rest.next();
                word.get_or_insert_default().push('$');
            }
            (')', None) if depth > 0 => depth -= 1,
            (c, None) if depth > 0 => word.get_or_insert_default().push(c),
            ('#', None) if word.is_none() => break,
            (' ', None) => words.extend(word.take().filter(|_| !std::mem::take(&mut is_redirected))),
            ('>' | '<', None) => {
                words.extend(word.take());
                while rest.next_if(|c| *c == ' ' || *c == '>').is_some() {}
                is_redirected = true;
            }
            ('|' | ';' | '&', None) => {
                words.extend(word.take().filter(|_| !std::mem::take(&mut is_redirected)));
                commands.push(std::mem::take(&mut words));
            }
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word.take().filter(|_| !is_redirected));
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// The pages for owners of game servers, by the name of their game's protocol.
pub fn game_pages() -> Vec<(String, Document)> {
    let pages = documents().into_iter().filter_map(|document| {
        let name = document.name.strip_prefix("docs/games/")?.strip_suffix(".md")?.to_string();
        Some((name, document))
    });
    pages.collect()
}

/// The lines of a game's configuration that its page has, for a master at this address: tests with the real programs use them.
pub fn game_lines(game: &str, language: &str, master: &str) -> String {
    game_blocks(game, language, master).into_iter().find(|block| block.contains(master)).unwrap()
}

/// All blocks of a language that the page has.
pub fn game_blocks(game: &str, language: &str, master: &str) -> Vec<String> {
    let (_, page) = game_pages().into_iter().find(|(name, _)| name == game).unwrap();
    // Over HTTP: a master on this machine has no certificate.
    let here = |text: String| {
        text.replace("https://master.example.org", "http://master.example.org").replace("master.example.org", master)
    };
    page.blocks(language).into_iter().map(|block| here(block.text)).collect()
}

/// A path without `.` and `..`.
pub fn normal(path: &Path) -> PathBuf {
    let mut parts: Vec<_> = Vec::new();
    for part in path.components() {
        match part.as_os_str().to_str().unwrap() {
            ".." => drop(parts.pop().unwrap_or_else(|| panic!("{} leads out", path.display()))),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.into_iter().collect()
}

pub fn is_elsewhere(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}
