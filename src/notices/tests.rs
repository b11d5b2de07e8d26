use hyper::header::HeaderValue;

use super::notice::Event;
use super::settings::Form;
use super::*;
use crate::config::Config;

/// What the configuration says, or its errors.
fn read(text: &str) -> Result<Vec<Target>, String> {
    Config::parse(Some(("file.toml", text)), &[]).map(|config| config.notices).map_err(|errors| errors.to_string())
}

fn table(keys: &str) -> String {
    format!("[[notices]]\n{keys}\n")
}

#[test]
fn a_table_and_what_it_leaves_out() {
    let all = read(&table("url = \"https://hooks.example/a?b=c\"")).unwrap();
    let [target] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&*target.name, target.form, &target.secret), ("hooks.example", Form::Json, &None));
    assert_eq!((target.wants.on.len(), target.wants.quiet_ms, target.wants.flood_per_second), (5, 300_000, 100));
    assert_eq!(target.url.whole().as_str(), "https://hooks.example/a?b=c");
    let discord = read(&table("url = \"https://discord.com/api/webhooks/1/token\"")).unwrap();
    assert_eq!(discord[0].form, Form::Discord);
    let full = "url = \"http://127.0.0.1:8000/\"\nname = \"mine\"\nform = \"discord\"\nsecret = \"0123456789abcdef\"\n\
                on = [\"came\", \"flood\"]\ngames = [\"Chess\"]\nservers = [\"203.0.113.5:1\"]\nquiet = \"0s\"\nflood = 7";
    let target = &read(&table(full)).unwrap()[0];
    assert_eq!((&*target.name, target.form), ("mine", Form::Discord));
    assert_eq!(target.wants.on, [Event::Came, Event::Flood]);
    assert_eq!((target.wants.quiet_ms, target.wants.flood_per_second), (0, 7));
    assert_eq!(target.warning(), None, "loopback");
    let open = &read(&table("url = \"http://hooks.example/a\"")).unwrap()[0];
    assert!(open.warning().unwrap().contains("http is not encrypted"));
}

#[test]
fn mistakes_are_explained_without_secrets() {
    let url = "url = \"https://hooks.example/hidden\"";
    let twice = table(url) + &table(url);
    let many: String = (0..17).map(|number| table(&format!("{url}\nname = \"{number}\""))).collect();
    for (text, says) in [
        (table("name = \"a\""), "notices: `url` is missing"),
        (table("url = 3"), ":2: notices: url must be a text in quotes"),
        (table("url = \"hidden\""), "notices: url must be an address like \"https://host/path\""),
        (table("url = \"ftp://hooks.example/hidden\""), "url must begin with https:// or http://"),
        (table("url = \"https://me:hidden@hooks.example/\""), "url must not have a login"),
        (table("url = \"https://hooks.example/#hidden\""), "url must not have a fragment"),
        (table(&format!("{url}\nurl_file = \"LICENSE-MIT\"")), "has both `url` and `url_file`"),
        (table(&format!("{url}\nsecret = \"hidden\"")), "secret must have at least 16 characters"),
        (
            table(&format!("{url}\nsecret_file = \"/nowhere/there\"")),
            ":3: notices: secret_file names a file that cannot be read: No such file",
        ),
        (
            table(&format!("{url}\nsecret_file = \"/dev/null\"")),
            "secret_file names a file that cannot be read: it is not a file",
        ),
        (table(&format!("{url}\nsecret = \"{}\"", "hidden".repeat(100))), "secret must not be longer than 512 bytes"),
        (
            table(&format!("{url}\nform = \"xml\"")),
            ":3: notices: form must be \"json\" or \"discord\", not the text \"xml\"",
        ),
        (table(&format!("{url}\non = [\"gone\"]")), "on must be \"came\" or \"went\" or"),
        (table(&format!("{url}\non = []")), "on must name at least one event"),
        (table(&format!("{url}\nservers = [\"x\"]")), "servers must be an address like"),
        (table(&format!("{url}\ngames = [\"\"]")), "games must be the name of a game"),
        (table(&format!("{url}\nquiet = \"2d\"")), "quiet must be a time like"),
        (table(&format!("{url}\nflood = 0")), "flood must be a whole number"),
        (table(&format!("{url}\nsecrets = \"hidden\"")), ":3: notices: unknown key `secrets`; did you mean `secret`?"),
        (table(&format!("{url}\nname = \" \"")), "name must be a name of 1 to 64 characters"),
        (table("url_file = \"https://hooks.example/hidden\""), "url_file names a file that cannot be read"),
        (table("url = https://hooks.example/hidden"), ":2: "),
        (table("url = \"https://hooks.example/hidden"), ":2: "),
        (table("secret = hidden"), ":2: "),
        ("notices = \"https://hooks.example/hidden\"".into(), "must be a list of tables: write [[notices]]"),
        ("[notices]\nurl = \"https://hooks.example/hidden\"".into(), "must be a list of tables: write [[notices]]"),
        ("notices = [\"https://hooks.example/hidden\"]".into(), "must be a list of tables: write [[notices]]"),
        (twice, "`hooks.example` is there twice: give each a `name`"),
        (many, "must not be more than 16"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains(says), "{text} should say `{says}`: {error}");
        assert!(!error.contains("hidden"), "{error}");
    }
    for set in [
        "notices=[{url=\"https://hidden.example\", x=1}]",
        "notices=[{url=\"https://hidden.example\"",
        "notices=https://hidden.example/",
        "notices.url=https://hidden.example/",
        "notice=https://hidden.example/",
    ] {
        let error = Config::parse(None, &[set.to_string()]).unwrap_err().to_string();
        assert!(error.starts_with("--set notice") && !error.contains("hidden"), "{error}");
    }
}

#[test]
fn debug_output_has_no_secrets() {
    let text = table("url = \"https://hooks.example/classified?classified\"\nsecret = \"classified classified\"");
    let config = Config::parse(Some(("file.toml", &text)), &[]).unwrap();
    let shown = format!("{config:?}");
    assert!(shown.contains("https://hooks.example/…") && !shown.contains("classified"), "{shown}");
}

/// Compared with `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 'a secret of 24 characters'`.
#[test]
fn the_signature_is_that_of_openssl() {
    let text = table("url = \"https://hooks.example/\"\nsecret = \"a secret of 24 characters\"");
    let target = &read(&text).unwrap()[0];
    let signature = sign::signature(target.secret.as_ref().unwrap(), 1_700_000_000, b"{\"a\":1}");
    assert_eq!(signature, "t=1700000000,v1=8a5b0d5add80ef5795351ce2acb861ed89d5dfee54136fe8b910f1011b0068b1");
}

#[test]
fn what_answers_mean() {
    let answer = |status: u16, after: Option<&'static str>| {
        let after = after.map(|after| (RETRY_AFTER, HeaderValue::from_static(after)));
        outcome(StatusCode::from_u16(status).unwrap(), &HeaderMap::from_iter(after))
    };
    let again = |status: u16, after| match answer(status, after) {
        Outcome::Failed(_, after_ms) => after_ms,
        other => panic!("{status}: {other:?}"),
    };
    for status in [200, 202, 204] {
        assert_eq!(answer(status, None), Outcome::Sent);
    }
    for status in [301, 307, 400, 401, 404, 410, 413] {
        assert!(matches!(answer(status, Some("5")), Outcome::Refused(_)), "{status}");
    }
    for status in [408, 429, 500, 503] {
        assert_eq!(again(status, None), None);
    }
    assert_eq!((again(429, Some("7")), again(503, Some(" 0.25 "))), (Some(7_000), Some(250)));
    for odd in ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "inf", "NaN", "1e300", ""] {
        assert!(again(429, Some(odd)).is_none_or(|after_ms| after_ms == 0 || after_ms == u64::MAX), "{odd}");
    }
}
