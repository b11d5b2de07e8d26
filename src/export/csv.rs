//! CSV: a header, then one line a server. What is unknown is empty.

use ::csv::WriterBuilder;

use super::{milliseconds, up};
use crate::client::Found;

const HEADER: [&str; 13] = [
    "game",
    "address",
    "port",
    "name",
    "mode",
    "map",
    "players_current",
    "players_max",
    "version",
    "password",
    "official",
    "flavor",
    "rtt_ms",
];

pub fn write(servers: &[Found]) -> String {
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    let mut record = |fields: [String; 13]| {
        let _ = writer.write_record(fields); // memory takes everything
    };
    record(HEADER.map(String::from));
    up(servers).for_each(|found| record(fields(found)));
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

fn fields(found: &Found) -> [String; 13] {
    fn known(value: Option<impl ToString>) -> String {
        value.map(|value| value.to_string()).unwrap_or_default()
    }
    let facts = &found.facts;
    [
        found.game.name().into(),
        found.address.ip().to_string(),
        found.address.port().to_string(),
        facts.name.to_string(),
        facts.mode.to_string(),
        facts.map.to_string(),
        known(facts.players_current),
        known(facts.players_max),
        facts.version.to_string(),
        known(facts.password),
        known(found.official),
        known(found.flavor),
        known(found.rtt_us.map(milliseconds)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tests::servers;
    use super::*;

    #[test]
    fn one_line_a_server_and_quotes_where_needed() {
        let text = write(&servers());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "game,address,port,name,mode,map,players_current,players_max,version,password,official,flavor,rtt_ms",
                r#"hyperbol,203.0.113.5,20200,"A ""quoted"", <b>&amp;</b> name",Deathmatch,a_doommkii.hba,3,8,1.08b,false,true,4,12.345"#,
                "netpanzer,2001:db8::1,3030,,,,,,,,,,",
            ]
        );
    }
}
