//! The upstreams in the configuration: `[[upstream]]`.

use std::time::Duration;

use crate::client::Target;
use crate::client::target::Kind;
use crate::model::Origin;
use crate::prefix::Networks;
use crate::settings::{Item, Problem};

/// Upper bound on the number of upstreams.
const UPSTREAMS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;
const EVERY_MIN: Duration = Duration::from_secs(5);
const EVERY_MAX: Duration = Duration::from_secs(86_400);
const EVERY: Duration = Duration::from_secs(60);
const SERVERS_MAX: i64 = 10_000;

/// Another master whose list is followed.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub target: Target,
    /// What its servers are listed via: the operator's name for it, or its address.
    pub name: String,
    pub every: Duration,
    pub servers_max: usize,
}

impl PartialEq for Upstream {
    fn eq(&self, other: &Upstream) -> bool {
        self.target.to_string() == other.target.to_string()
            && (&self.name, self.every, self.servers_max) == (&other.name, other.every, other.servers_max)
    }
}

/// All upstreams, and what bounds them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub upstreams: Vec<Upstream>,
    pub servers_per_ip_max: u32,
    /// Networks whose addresses may be asked even if they are private, and that have only the limit per address.
    pub exempt: Networks,
}

impl Upstream {
    /// All tables of the configuration.
    pub fn read_all(item: &Item<'_>) -> Result<Vec<Upstream>, Problem> {
        let upstreams = item.list("a list of tables: write [[upstream]]", |table| Upstream::read(&table))?;
        if upstreams.len() > UPSTREAMS_MAX {
            return Err((None, format!("must not be more than {UPSTREAMS_MAX}")));
        }
        for (number, upstream) in upstreams.iter().enumerate() {
            if upstreams.iter().skip(number + 1).any(|other| other.name == upstream.name) {
                return Err((None, format!("`{}` is there twice", upstream.name)));
            }
        }
        Ok(upstreams)
    }

    fn read(table: &Item<'_>) -> Result<Upstream, Problem> {
        table.only(&["url", "name", "every", "max_servers"])?;
        let target = table.required("url", target)?;
        let name = table.optional("name", |item| item.name(NAME_BYTES_MAX))?.unwrap_or_else(|| target.to_string());
        if name.len() > Origin::BYTES_MAX {
            return Err((None, format!("url is longer than {} bytes: give it a `name`", Origin::BYTES_MAX)));
        }
        let every = table.optional("every", |item| item.duration(EVERY_MIN, EVERY_MAX))?.unwrap_or(EVERY);
        let servers_max = table.optional("max_servers", |item| item.integer(1, 1_000_000))?.unwrap_or(SERVERS_MAX);
        Ok(Upstream { target, name, every, servers_max: servers_max as usize })
    }

    /// Why nothing of it can be listed, if nothing can.
    pub fn warning(&self) -> Option<String> {
        let (Kind::Game(card) | Kind::Page(card)) = self.target.kind else { return None };
        card.query.is_none().then(|| {
            let (url, title) = (&self.target, card.title);
            format!("upstream {url}: {title} servers cannot be queried, so none of them can be listed")
        })
    }
}

/// The address of a list.
fn target(item: &Item<'_>) -> Result<Target, Problem> {
    let wrong = |why: String| (None, format!("must be the address of a master: {why}"));
    let target: Target = item.text()?.parse().map_err(wrong)?;
    target.master_port().map_err(wrong)?;
    if let Some(fetch) = target.datagram_fetch() {
        let (path, query) = target.path_and_query().map_err(wrong)?;
        fetch.requests(&path, query, &[]).map_err(wrong)?;
    }
    Ok(target)
}
