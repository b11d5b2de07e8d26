use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::protocols::{iceball, netpanzer};

fn errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    Config::default().read("file.toml", text, &mut errors);
    errors
}

fn error(text: &str) -> String {
    let found = errors(text);
    assert_eq!(found.len(), 1, "{text}: {found:?}");
    found[0].clone()
}

fn set(assignment: &str) -> Result<Config, String> {
    Config::load(None, &[assignment.to_string()]).map_err(|errors| errors.to_string())
}

/// Every address of both families.
fn both(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

#[test]
fn the_default_file_says_what_holds_without_a_file() {
    let file = default_file();
    assert_eq!(errors(&file), Vec::<String>::new());
    let mut config = Config::default();
    config.read("default", &file, &mut Vec::new());
    assert_eq!(config, Config::default());
    let iceball: iceball::settings::Settings = config.protocol();
    assert_eq!(iceball.listen, both(27790));
    assert_eq!(iceball.client_listen, both(27795));
    assert_eq!(config.web.listen, both(8080));
    assert_eq!(config.guard.servers_per_ip_max, 32);
    assert_eq!(iceball.rules, iceball::serve::Settings::default());
    for (card, section) in config.sections() {
        assert!(section.is_equal(&*(card.section)()), "{}", card.name);
    }
}

#[test]
fn every_default_is_accepted_and_every_key_has_words() {
    for (path, key) in all_keys() {
        let value = DeValue::parse(key.default).unwrap();
        let set = Config::default().set(&path, &Item::new(value.get_ref()));
        assert!(matches!(set, Some(Ok(()))), "{path}");
        assert!(key.doc.ends_with('.') || key.doc.ends_with(']'), "{path}");
        if !key.example.is_empty() {
            assert_eq!(errors(key.example), Vec::<String>::new());
        }
    }
}

#[test]
fn errors_name_the_key_the_line_and_the_nearest_known_key() {
    let unknown = error("log = \"warn\"\n\n[iceball]\nlisten = []\nlisen = []\n");
    assert_eq!(unknown, "file.toml:5: unknown key `iceball.lisen`; did you mean `iceball.listen`?");
    assert_eq!(error("[icebal]\n"), "file.toml:1: unknown key `icebal`; did you mean `iceball`?");
    assert_eq!(
        error("max_servers_per_ip = 3"),
        "file.toml:1: unknown key `max_servers_per_ip`; did you mean `guard.max_servers_per_ip`?"
    );
    assert_eq!(error("xyzzyplugh = 3"), "file.toml:1: unknown key `xyzzyplugh`; `rallypoint config` prints all keys");
    assert_eq!(error("web = 3"), "file.toml:1: web is a section: write [web]");
}

#[test]
fn wrong_types_and_impossible_values() {
    let cases = [
        ("[web]\nlisten = 8080", ":2: web.listen: must be a list of addresses"),
        ("[web]\nlisten = [\n  \"0.0.0.0:8080\",\n  \"nonsense\"]", ":4: web.listen: must be an address and port"),
        ("[web]\ntitle = 3", ":2: web.title: must be a text in quotes, not the number 3"),
        ("[web]\nlisten = [\"0.0.0.0:70000\"]", "not the text \"0.0.0.0:70000\""),
        ("[guard]\nmax_servers_per_ip = 0", ":2: guard.max_servers_per_ip: must be a whole number from 1 to 65535"),
        ("[guard]\nmax_servers_per_ip = \"3\"", "not the text \"3\""),
        ("[guard]\nmax_servers = 99999999999999999999", "must be a whole number"),
        ("[guard]\nbans = [\"203.0.113.0/33\"]", "must be an address or network"),
        ("[guard]\nmax_per_game_and_network = -1", "must be a whole number from 0 to 1000000, not the number -1"),
        (
            "[guard]\nmax_per_game_and_network = [\n\"a=1\",\n\"b\"]",
            ":4: guard.max_per_game_and_network: must be a game and a",
        ),
        ("[guard]\nmax_per_game_and_network = \"=5\"", "like \"xonotic=64\", not \"=5\""),
        ("[guard]\nmax_per_game_and_network = [\"a=1000001\"]", "from 0 to 1000000 like"),
        ("[iceball]\nlife = \"0s\"", "must be a time like \"30s\" or \"5m\", from \"1s\" to \"1d\""),
        ("[iceball]\nlife = 30", "must be a time"),
        ("[iceball]\nversion = \"two\"", "must be a version like"),
        ("[iceball]\nheartbeat_version = -1", "must be a whole number from 0 to 65535, not the number -1"),
        ("[[iceball.servers]]\nofficial = true", ":1: iceball.servers: `address` is missing"),
        ("[[iceball.servers]]\naddress = \"1.2.3.4:0\"", ":2: iceball.servers: address must be an address"),
        ("[[iceball.servers]]\naddress = \"1.2.3.4:5\"\nprio = 3", ":3: iceball.servers: unknown key `prio`"),
        ("[netpanzer]\nverify = \"yes\"", ":2: netpanzer.verify: must be \"query\" or \"off\", not the text \"yes\""),
        ("[netpanzer]\nneighbours = [\"a:b\"]", "must be a master like"),
        ("[netpanzer]\npublic = \"x\"", "must be an address like"),
        ("[proxy]\nheader = \"x-real-ip\"", ":2: proxy.header: must be \"x-forwarded-for\" or \"forwarded\", not"),
        ("[proxy]\nnetworks = [\"proxy.example\"]", ":2: proxy.networks: must be an address or network"),
        ("[probe]\nfrom = [\"here\"]", ":2: probe.from: must be an address like"),
        ("[probe]\nfrom = [\"192.0.2.1\", \"192.0.2.1\"]", ":2: probe.from: must be a list of at most eight"),
        ("[probe]\nfrom = [\"0.0.0.0\"]", ":2: probe.from: must be a list of at most eight"),
        ("[probe]\nevery = \"1h\"", "from \"1s\" to \"15m\""),
        (
            "[[hyperbol.servers]]\naddress = \"1.2.3.4:5\"\nflavor = 256",
            ":3: hyperbol.servers: flavor must be a whole number",
        ),
        ("[bloodmasters]\nlist = 1", ":2: bloodmasters.list: must be true or false"),
        ("[cluster]\nnats = [\"http://10.0.0.1\"]", ":2: cluster.nats: must be nats://host:4222 or tls://host:4222"),
        ("[cluster]\nnats = \"nats://10.0.0.1\"", "must be a list of NATS servers"),
        ("[cluster]\nnode = \"a b\"", "must be up to 32 letters"),
        ("[cluster]\nreplicas = 6", "must be a whole number from 0 to 5"),
        ("log = \"loud\"", ":1: log: must be \"error\""),
        ("log = ", ":1: "),
        ("log = \"info\"\nlog = \"warn\"", ":2: "),
    ];
    for (text, expected) in cases {
        let found = error(text);
        assert!(found.contains(expected), "{text}\n   gives {found}\n   without {expected}");
    }
}

#[test]
fn passwords_that_the_protocol_cannot_carry() {
    let long = format!("\"{}\"", "x".repeat(513));
    for (password, why) in [
        ("\"final\"", "the word `final` ends a message"),
        ("'a\\b'", "it has a backslash"),
        ("'\\\\'", "it has a backslash"),
        ("\"a\\tb\"", "it has a control character"),
        ("\"secret\\n\"", "it has a control character"),
        ("\"   \"", "it is blank"),
        (&long, "it is longer than 512 bytes"),
    ] {
        let found = error(&format!("[netpanzer]\npassword = {password}"));
        assert!(found.starts_with("file.toml:2: netpanzer.password: ") && found.contains(why), "{found}");
        let found = set(&format!("netpanzer.password={password}")).unwrap_err();
        assert!(found.contains("netpanzer.password") && found.contains(why), "{found}");
    }
    for good in ["final answer", "Final", "Gr\u{fc}\u{df}e", "a b", ""] {
        let config = set(&format!("netpanzer.password={good}")).unwrap();
        assert_eq!(config.protocol::<netpanzer::settings::Settings>().rules.password, good);
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let found = errors("[web]\nlissten = []\n[guard]\nmax_servers = true\n");
    assert_eq!(found.len(), 2);
    assert!(found[0].starts_with("file.toml:2:") && found[1].starts_with("file.toml:4:"));
}

#[test]
fn set_overrides_any_key() {
    let listen = |config: Config| config.protocol::<iceball::settings::Settings>().listen;
    assert_eq!(listen(set("iceball.listen=127.0.0.1:27790").unwrap()), ["127.0.0.1:27790".parse().unwrap()]);
    assert_eq!(listen(set("iceball.listen=127.0.0.1:1, [::1]:2").unwrap()).len(), 2);
    assert_eq!(listen(set("iceball.listen=").unwrap()), []);
    assert_eq!(listen(set("iceball.listen=[\"127.0.0.1:1\"]").unwrap()).len(), 1);
    assert_eq!(listen(set("iceball.listen=5000").unwrap()), both(5000));
    assert_eq!(set("web.listen=0").unwrap().web.listen, both(0));
    assert_eq!(set("web.listen=127.0.0.1:1,80").unwrap().web.listen[1..], both(80));
    assert_eq!(set("web.title=My \"own\" = list").unwrap().web.title, "My \"own\" = list");
    let life_ms = |config: Config| config.protocol::<iceball::settings::Settings>().rules.life_ms;
    assert_eq!(life_ms(set("iceball.life=2s").unwrap()), 2_000);
    assert_eq!(set("guard.max_servers_per_ip=5").unwrap().guard.servers_per_ip_max, 5);
    assert!(set("guard.max_servers_per_ip=five").unwrap_err().contains("whole number from 1 to 65535"));
    assert!(set("iceball.lisen=x").unwrap_err().contains("did you mean `iceball.listen`?"));
    assert!(set("iceball.listen").unwrap_err().contains("write --set iceball.listen=VALUE"));
    let word = set("iceball.servers=[{address=\"192.0.2.1:5\", official=true}]").unwrap();
    assert!(word.named_servers()[0].overrides.official);
}

#[test]
fn limits_of_games_are_one_number_or_some_for_each() {
    let limits = |text: &str| set(&format!("guard.max_per_game_and_network={text}")).unwrap().guard.game_limits;
    assert_eq!(Config::default().guard.game_limits, GameLimits::default());
    assert_eq!(limits("64"), GameLimits { others: 64, ..GameLimits::default() });
    let some = limits("[\"a=b = 3\", \"*=200\"]");
    assert_eq!(some, GameLimits { named: [("a=b".to_string(), 3)].into(), others: 200 });
    assert_eq!(limits("a=b=3, *=200"), some);
}

#[test]
fn one_address_for_two_listeners_is_an_error() {
    let error = set("web.listen=0.0.0.0:28900").unwrap_err();
    assert_eq!(error, "netpanzer.listen: 0.0.0.0:28900 is taken by web.listen already");
    let error = set("web.listen=28900").unwrap_err();
    assert!(error.contains("0.0.0.0:28900 is taken") && error.contains("[::]:28900 is taken"), "{error}");
    assert!(set("web.listen=127.0.0.1:1,127.0.0.1:1").unwrap_err().contains("twice"));
    assert!(set("web.listen=80,0.0.0.0:80").unwrap_err().contains("0.0.0.0:80 is listed twice"));
    assert!(set("web.listen=127.0.0.1:0,127.0.0.1:0").is_ok());
}

#[test]
fn tls_needs_a_certificate_and_its_key() {
    assert_eq!(set("web.tls_listen=").unwrap(), Config::default());
    assert!(set("web.tls_certificate=a.crt").is_ok(), "for later");
    let missing = set("web.tls_listen=8443").unwrap_err();
    assert!(missing.contains("web.tls_certificate: ") && missing.contains("web.tls_key: "), "{missing}");
    let all = ["web.tls_listen=8443", "web.tls_certificate=a.crt", "web.tls_key=a.key"].map(String::from);
    let config = Config::load(None, &all).unwrap();
    assert_eq!((config.web.tls_listen.clone(), config.web.tls_key), (both(8443).to_vec(), Some("a.key".into())));
    let taken = Config::load(None, &[&all[..], &["web.listen=8443".into()]].concat()).unwrap_err().to_string();
    assert!(taken.contains("web.tls_listen: 0.0.0.0:8443 is taken by web.listen already"), "{taken}");
}

#[test]
fn trusting_everybody_as_a_proxy_is_a_warning() {
    assert!(set("proxy.networks=10.0.0.0/8,::1").unwrap().warnings().is_empty());
    for everybody in ["proxy.networks=0.0.0.0/0", "proxy.protocol=10.0.0.1,::/0"] {
        let warnings = set(everybody).unwrap().warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("anybody can pretend to be anybody"), "{warnings:?}");
    }
}

#[test]
fn only_listeners_need_a_restart() {
    let old = Config::default();
    assert_eq!(old.needs_restart(&set("web.listen=127.0.0.1:1").unwrap()), ["web.listen"]);
    assert_eq!(old.needs_restart(&set("web.listen=0.0.0.0:8080").unwrap()), ["web.listen"]);
    assert!(old.needs_restart(&set("web.listen=8080").unwrap()).is_empty(), "the same in short");
    assert_eq!(old.needs_restart(&set("hyperbol.listen=").unwrap()), ["hyperbol.listen"]);
    assert!(old.needs_restart(&set("guard.bans=127.0.0.1").unwrap()).is_empty());
    assert!(old.needs_restart(&set("proxy.protocol=127.0.0.1").unwrap()).is_empty());
}

#[test]
fn what_needs_a_restart_is_named() {
    let (before, after) = (Config::default(), set("cluster.nats=nats://10.0.0.1:4222").unwrap());
    assert_eq!(before.needs_restart(&before), Vec::<&str>::new());
    assert_eq!(before.needs_restart(&after), ["cluster"]);
    assert_eq!(after.needs_restart(&set("web.listen=").unwrap()), ["web.listen", "cluster"]);
    let mut long = after.clone();
    assert_eq!(long.assign("iceball.life=300s"), Ok(()));
    assert_eq!(after.needs_restart(&long), ["iceball.life"], "what all nodes share is kept for a life");
    assert!(before.needs_restart(&set("iceball.life=1d").unwrap()).is_empty());
    let lives = before.sections().map(|(_, section)| section.life_max_ms());
    assert_eq!(Some(before.life_max().as_millis() as u64), lives.max());
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Some(Path::new("/nowhere/rallypoint.toml")), &[]).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/rallypoint.toml: cannot be read"), "{error}");
}

#[test]
fn browsers_are_told_to_stay_with_tls_only_where_nothing_breaks() {
    let days = |set: &[&str]| {
        let files = ["web.tls_certificate=x", "web.tls_key=y"];
        let set: Vec<String> = set.iter().chain(&files).map(|set| set.to_string()).collect();
        Config::parse(None, &set).unwrap().hsts().map(|age| age.as_secs() / 86_400)
    };
    let usual = "web.tls_listen=443";
    assert_eq!(days(&[]), None);
    assert_eq!(days(&[usual]), None, "the page is at port 8080, too");
    assert_eq!(days(&[usual, "web.listen=127.0.0.1:8080,[::1]:8080"]), Some(30));
    assert_eq!(days(&[usual, "web.listen="]), Some(30));
    assert_eq!(days(&["web.tls_listen=8443", "web.listen="]), None, "port 443 may be somebody else's");
    assert_eq!(days(&[usual, "web.listen=", "web.hsts=0s"]), None);
    assert_eq!(days(&["web.hsts=365d"]), Some(365));
}

#[test]
fn tokens_and_hosts_are_checked_and_a_token_is_never_shown() {
    let parse = |set: &str| Config::parse(None, &[set.to_string()]).map_err(|errors| errors.to_string());
    for token in ["a", "0123456789abcde", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"] {
        let error = parse(&format!("web.token={token}")).unwrap_err();
        assert!(error.contains("at least 16 characters") && !error.contains(&format!("={token}")), "{error}");
        let file = format!("[web]\ntoken = \"{token}\"\n");
        let error = Config::parse(Some(("file", &file)), &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("file:2: web.token: must have") && !error.contains(&format!("\"{token}\"")),
            "{error}"
        );
    }
    assert_eq!(parse("web.token=0123456789abcdef").unwrap().web.token, "0123456789abcdef");
    assert_eq!(parse("web.token=").unwrap().web.token, "");
    let hosts = parse("web.hosts=Master.Example,www.master.example.,b\u{fc}cher.example").unwrap().web.hosts;
    assert_eq!(hosts, ["master.example", "www.master.example", "xn--bcher-kva.example"]);
    for wrong in
        ["https://master.example", "master.example:8080", "master.example/x", "*.example", "192.0.2.1", "[::1]"]
    {
        let error = parse(&format!("web.hosts={wrong}")).unwrap_err();
        assert!(error.contains("is not a host name"), "{wrong}: {error}");
    }
}
