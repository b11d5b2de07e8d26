//! `rallypoint simulate`: simulated game servers, until Ctrl-C. Their addresses go to stdout, one per line, in the form
//! that `rallypoint query --from` reads.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tracing::info;
use tracing::level_filters::LevelFilter;

use super::out::print;
use super::serve::{raise_descriptor_limit, start_log};
use super::{Exit, Failure, help, run_async, stop_signal, time};
use crate::client::Target;
use crate::client::simulate::{Announcing, Network, bind, run as answer_and_announce};
use crate::protocols::{Card, card};

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[arg(value_parser = game, help = help::names("or"))]
    game: Game,
    /// Number of servers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    count: u32,
    #[arg(long, value_name = "MASTER", help = announce_help())]
    announce: Option<Target>,
    /// Address to listen on; with a port, the servers use consecutive ports from there
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1", value_parser = listen)]
    listen: SocketAddr,
    /// Drop this percentage of the answers
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    loss: u8,
    /// Delay every answer by this time, e.g. 30ms
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = delay)]
    delay: Duration,
    /// Let players come and go, about this often on each server, e.g. 10s: a list that lives
    #[arg(long, value_name = "TIME", value_parser = delay)]
    come_and_go: Option<Duration>,
}

fn announce_help() -> String {
    format!("Announce them to this master: {}", help::announce_schemes())
}

fn after_help() -> String {
    let (not_queryable, game) = (help::not_queryable(), help::example());
    format!("{not_queryable}Example: rallypoint simulate {game} --count 20 --announce {game}://127.0.0.1")
}

#[derive(Clone, Copy)]
struct Game(&'static Card);

fn game(text: &str) -> Result<Game, String> {
    card(text).map(Game).ok_or_else(|| format!("unknown game; the games are {}", help::list_of_names()))
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let whole = text.parse::<SocketAddr>().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0)));
    whole.map_err(|_| "write an address like 127.0.0.1 or 127.0.0.1:3030".into())
}

fn delay(text: &str) -> Result<Duration, String> {
    time::parse(text)
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Game(card) = arguments.game;
    let announcing = arguments.announce.clone().map(|target| Announcing::to(target, card));
    let announcing = announcing.transpose().map_err(|why| Failure::new(Exit::Usage, why))?;
    start_log(LevelFilter::INFO);
    raise_descriptor_limit();
    run_async(async {
        let stop = stop_signal()?;
        let mut servers = bind(card, arguments.count as usize, arguments.listen)
            .await
            .map_err(|error| Failure::new(Exit::Network, format!("cannot listen on {}: {error}", arguments.listen)))?;
        servers
            .iter_mut()
            .for_each(|server| server.come_and_go = arguments.come_and_go.filter(|every| !every.is_zero()));
        let addresses: String = servers.iter().map(|server| format!("{}://{}\n", card.name, server.address)).collect();
        let _ = print(&addresses)?; // without a reader, too, the servers keep running
        info!("{} {} servers are running", servers.len(), card.title);
        let network = Network { loss_percent: arguments.loss, delay: arguments.delay };
        tokio::select! {
            () = answer_and_announce(servers, network, announcing) => {}
            () = stop => {}
        }
        Ok(())
    })
}
