//! `rallypoint simulate`: pretend game servers, until Ctrl-C. Their addresses go to stdout, one a line, in the form that
//! `rallypoint query --from` reads.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tracing::info;
use tracing::level_filters::LevelFilter;

use super::out::print;
use super::serve::{raise_descriptor_limit, start_log};
use super::{Exit, Failure, run_async, stop_signal, time};
use crate::client::Target;
use crate::client::announce::Master;
use crate::client::simulate::{Network, bind, run as answer_and_announce};
use crate::protocols::{CARDS, Card, card};

#[derive(clap::Args)]
#[command(after_help = "\
Iceball's servers are not queried: they only announce themselves.

Example: rallypoint simulate netpanzer --count 20 --announce netpanzer://127.0.0.1")]
pub struct Arguments {
    /// iceball, netpanzer, hyperbol or bloodmasters
    #[arg(value_parser = game)]
    game: Game,
    /// How many servers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    count: u32,
    /// Announce them to this master: iceball://, bloodmasters+http://, or netpanzer:// and http:// for any game
    #[arg(long, value_name = "MASTER")]
    announce: Option<Target>,
    /// Their address; with a port, they take consecutive ones from there on
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1", value_parser = listen)]
    listen: SocketAddr,
    /// So many percent of the answers get lost
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    loss: u8,
    /// Every answer takes this long, for example 30ms
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = delay)]
    delay: Duration,
}

#[derive(Clone, Copy)]
struct Game(&'static Card);

fn game(text: &str) -> Result<Game, String> {
    card(text).map(Game).ok_or_else(|| {
        let names: Vec<_> = CARDS.iter().map(|card| card.name).collect();
        format!("the games are {}", names.join(", "))
    })
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
    let master = arguments.announce.clone().map(|target| Master::of(target, card.name));
    let master = master.transpose().map_err(|why| Failure::new(Exit::Usage, why))?;
    start_log(LevelFilter::INFO);
    raise_descriptor_limit();
    run_async(async {
        let stop = stop_signal()?;
        let servers = bind(card, arguments.count as usize, arguments.listen)
            .await
            .map_err(|error| Failure::new(Exit::Network, format!("cannot listen on {}: {error}", arguments.listen)))?;
        let addresses: String = servers.iter().map(|server| format!("{}://{}\n", card.name, server.address)).collect();
        let _ = print(&addresses)?; // the servers run on without a reader
        info!("{} {} servers are up", servers.len(), card.title);
        let network = Network { loss_percent: arguments.loss, delay: arguments.delay };
        tokio::select! {
            () = answer_and_announce(servers, network, master) => {}
            () = stop => {}
        }
        Ok(())
    })
}
