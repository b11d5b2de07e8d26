//! The page, from a template that the operator can replace. Everything in it is escaped by the template engine:
//! nothing from the network is ever markup.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, context};
use serde::Serialize;
use tracing::warn;

use super::json::rfc3339;
use crate::config;
use crate::model::Server;
use crate::protocols::{CARDS, card};
use crate::registry::view::{Renderer, View};

pub const BUILT_IN_TEMPLATE: &str = include_str!("../../assets/index.html");
pub const BUILT_IN_STYLESHEET: &str = include_str!("../../assets/style.css");

const NAME: &str = "index.html";

/// What is wrong with one of the operator's files.
#[derive(Debug)]
pub struct PageError(String);

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PageError {}

fn read(path: &Path, key: &str) -> Result<String, PageError> {
    std::fs::read_to_string(path).map_err(|error| PageError(format!("{key}: {}: {error}", path.display())))
}

pub fn stylesheet(web: &config::Web) -> Result<String, PageError> {
    let path = web.stylesheet.as_deref();
    path.map_or(Ok(BUILT_IN_STYLESHEET.to_string()), |path| read(path, "web.stylesheet"))
}

/// The index page.
pub struct Index {
    environment: Environment<'static>,
    title: String,
}

#[derive(Serialize)]
struct Row<'a> {
    game: &'a str,
    game_title: &'a str,
    name: &'a str,
    address: String,
    link: Option<String>,
    mode: &'a str,
    map: &'a str,
    version: &'a str,
    players_current: Option<u16>,
    players_max: Option<u16>,
    official: bool,
    verified_by: &'static str,
    proven_at: String,
    first_seen: String,
}

impl Index {
    /// Compiles the template and renders it once, so that a mistake is found now and not by a visitor.
    pub fn load(web: &config::Web) -> Result<Index, PageError> {
        let (source, place) = match &web.template {
            Some(path) => (read(path, "web.template")?, path.display().to_string()),
            None => (BUILT_IN_TEMPLATE.to_string(), "the built-in template".into()),
        };
        let tell = |error: minijinja::Error| {
            let line = error.line().map(|line| format!(":{line}")).unwrap_or_default();
            PageError(format!("web.template: {place}{line}: {error}"))
        };
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        environment.set_formatter(|out, _, value| write_escaped(out, value));
        environment.add_template_owned(NAME, source).map_err(tell)?;
        let index = Index { environment, title: web.title.clone() };
        index.try_render(&View::new(0, 0, Vec::new())).map_err(tell)?;
        Ok(index)
    }

    fn try_render(&self, view: &View) -> Result<String, minijinja::Error> {
        let mut servers: Vec<&Arc<Server>> = view.games().collect();
        let most_first = |server: &&Arc<Server>| {
            let players = server.players_current.unwrap_or(0);
            std::cmp::Reverse((server.word.priority, players, server.word.official))
        };
        servers.sort_by_key(most_first);
        let players: u64 = servers.iter().map(|server| u64::from(server.players_current.unwrap_or(0))).sum();
        let games: Vec<_> = CARDS.iter().map(|card| card.title).collect();
        let rows: Vec<_> = servers.into_iter().map(|server| row(server)).collect();
        let template = self.environment.get_template(NAME)?;
        template.render(context! {
            title => &self.title,
            games => games,
            serial => view.serial,
            published_at => rfc3339(view.published_at_ms),
            players => players,
            servers => Value::from(Serde(&rows)),
        })
    }
}

/// As the engine does, but for the slash, which needs no escape and makes links unreadable.
fn write_escaped(out: &mut minijinja::Output<'_>, value: &Value) -> Result<(), minijinja::Error> {
    let text = value.to_string();
    if value.is_safe() {
        return out.write_str(&text).map_err(minijinja::Error::from);
    }
    for part in text.split_inclusive(['&', '<', '>', '"', '\'']) {
        let special = part.chars().next_back();
        let escaped = match special {
            Some('&') => "&amp;",
            Some('<') => "&lt;",
            Some('>') => "&gt;",
            Some('"') => "&quot;",
            Some('\'') => "&#39;",
            _ => {
                out.write_str(part)?;
                continue;
            }
        };
        out.write_str(part.get(..part.len() - 1).unwrap_or_default())?;
        out.write_str(escaped)?;
    }
    Ok(())
}

impl Renderer for Index {
    fn render(&self, view: &View) -> Vec<u8> {
        let page = self.try_render(view).unwrap_or_else(|error| {
            warn!(%error, "the page template failed");
            "The page cannot be shown: its template failed. The log says why.\n".into()
        });
        page.into_bytes()
    }
}

fn row(server: &Server) -> Row<'_> {
    let card = card(server.game.name());
    Row {
        game: server.game.name(),
        game_title: card.map_or(server.game.name(), |card| card.title),
        name: server.texts.name(),
        address: server.address.to_string(),
        link: card.map(|card| (card.join_link)(server.address)),
        mode: server.texts.mode(),
        map: server.texts.map(),
        version: server.texts.version(),
        players_current: server.players_current,
        players_max: server.players_max,
        official: server.word.official,
        verified_by: server.verified_by.name(),
        proven_at: rfc3339(server.proven_at_ms),
        first_seen: rfc3339(server.first_seen_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::model::{Facts, Game, Proof};

    fn view(name: &str) -> View {
        let facts = Facts { name: name.to_string().into(), ..Facts::default() };
        let server = Server::new(
            "203.0.113.5:20737".parse().unwrap(),
            Game::Known("iceball"),
            Proof::Cookie,
            1_760_000_000_000,
            &facts,
        );
        View::new(1, 1_760_000_000_000, vec![Arc::new(server)])
    }

    #[test]
    fn names_stay_text() {
        let index = Index::load(&Config::default().web).unwrap();
        let page = String::from_utf8(index.render(&view("<script>alert('x')</script>\" onload=\""))).unwrap();
        assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;"), "{page}");
        assert!(page.contains("href=\"iceball://203.0.113.5:20737\""), "{page}");
        assert!(page.contains("2025-10-09T08:53:20Z"), "{page}");
    }

    #[test]
    fn a_broken_template_is_refused_with_its_line() {
        let folder = std::env::temp_dir().join(format!("rallypoint-page-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("broken.html");
        let web = config::Web { template: Some(path.clone()), ..Config::default().web };
        let missing = Index::load(&web).err().unwrap().to_string();
        assert!(missing.contains("web.template") && missing.contains("broken.html"), "{missing}");
        std::fs::write(&path, "fine\n{% for %}\n").unwrap();
        let broken = Index::load(&web).err().unwrap().to_string();
        assert!(broken.contains("broken.html:2"), "{broken}");
        std::fs::write(&path, "{{ servers | nosuchfilter }}").unwrap();
        assert!(Index::load(&web).is_err());
        std::fs::write(&path, "{{ title }}: {{ servers | length }}").unwrap();
        assert_eq!(Index::load(&web).unwrap().render(&view("x")), b"Rallypoint: 1");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
