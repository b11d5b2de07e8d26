//! Templates. The engine escapes everything: nothing from the network becomes markup.

use std::fmt;
use std::path::Path;

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value};
use serde::Serialize;
use tracing::warn;

/// An error in one of the operator's files.
#[derive(Debug, PartialEq)]
pub struct PageError(pub String);

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PageError {}

pub fn read(path: &Path, key: &str) -> Result<String, PageError> {
    std::fs::read_to_string(path).map_err(|error| PageError(format!("{key}: {}: {error}", path.display())))
}

/// The frame of all pages but the index. Every template can use this and the next.
const FRAME: (&str, &str) = ("frame.html", include_str!("../../assets/frame.html"));

/// What is known of one server.
const DETAILS: (&str, &str) = ("details.html", include_str!("../../assets/details.html"));

/// One page's template, compiled.
pub struct Template {
    environment: Environment<'static>,
    name: &'static str,
}

impl Template {
    pub fn new(name: &'static str, source: String) -> Result<Template, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        environment.set_formatter(|out, _, value| write_escaped(out, value));
        environment.add_filter("marked", marked);
        for (name, source) in [FRAME, DETAILS] {
            environment.add_template(name, source)?;
        }
        environment.add_template_owned(name, source)?;
        Ok(Template { environment, name })
    }

    pub fn try_render(&self, variables: &impl Serialize) -> Result<String, minijinja::Error> {
        self.environment.get_template(self.name)?.render(Value::from(Serde(variables)))
    }

    /// A template that was tested once can still fail on other values; the reason goes to the log, not to the visitor.
    pub fn render(&self, variables: &impl Serialize) -> String {
        self.try_render(variables).unwrap_or_else(|error| {
            warn!(%error, "the template of {} failed", self.name);
            "The page cannot be shown: its template failed. The log says why.\n".into()
        })
    }
}

/// Escapes as the engine does, except for the slash: it needs no escape, and escaped links are unreadable.
fn write_escaped(out: &mut minijinja::Output<'_>, value: &Value) -> Result<(), minijinja::Error> {
    let text = value.to_string();
    if value.is_safe() {
        return out.write_str(&text).map_err(minijinja::Error::from);
    }
    for part in text.split_inclusive(SPECIAL) {
        out.write_str(part.trim_end_matches(SPECIAL))?;
        out.write_str(part.chars().next_back().map_or("", escaped))?;
    }
    Ok(())
}

const SPECIAL: [char; 5] = ['&', '<', '>', '"', '\''];

/// The escape for a special character; none for others.
fn escaped(special: char) -> &'static str {
    match special {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        '"' => "&quot;",
        '\'' => "&#39;",
        _ => "",
    }
}

/// Our own text with `code` in backticks, as in the comments that describe the API.
fn marked(text: &str) -> Value {
    let mut html = String::with_capacity(text.len());
    for (number, part) in text.split('`').enumerate() {
        let escaped = part.chars().map(|c| match escaped(c) {
            "" => c.to_string(),
            escaped => escaped.to_string(),
        });
        match number % 2 {
            0 => html.extend(escaped),
            _ => html.push_str(&format!("<code>{}</code>", escaped.collect::<String>())),
        }
    }
    Value::from_safe_string(html)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str, text: &str) -> String {
        let template = Template::new("test.html", source.into()).unwrap();
        template.render(&std::collections::HashMap::from([("text", text)]))
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(
            rendered("{{ text }}", "<a href=\"/x\">&'</a>"),
            "&lt;a href=&quot;/x&quot;&gt;&amp;&#39;&lt;/a&gt;"
        );
        assert_eq!(rendered("{{ text }}", "<<>>"), "&lt;&lt;&gt;&gt;");
        assert_eq!(rendered("{{ text }}", ""), "");
        assert_eq!(rendered("{{ text | marked }}", "a `<b>` & c"), "a <code>&lt;b&gt;</code> &amp; c");
    }
}
