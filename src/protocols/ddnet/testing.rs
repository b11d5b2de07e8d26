//! What a real server (Debian's 16.4) sends, for tests.

pub const SECRET: &str = "569baaab-1815-4d42-a066-f559a0363903";
pub const CHALLENGE_SECRET: &str = "9eab27de-20c4-431c-b4be-bf15c7b3d21b:tw0.6/ipv4";
pub const INFO: &str = concat!(
    r#"{"max_clients":16,"max_players":16,"passworded":false,"game_type":"TestDDraceNetwork","name":"Loopback DD","#,
    r#""map":{"name":"Tutorial","sha256":"0dafbba301084aebbf439575e36a44bfb65a4f15e606e9eec3814e2e0e28d953","#,
    r#""size":1082711},"version":"0.6.4, 16.4","clients":[]}"#,
);

/// The headers of its first request, with changes: another value, or none.
pub fn headers(changes: &[(&'static str, Option<&'static str>)]) -> Vec<(&'static str, &'static str)> {
    let mut headers = vec![
        ("address", "tw-0.6+udp://connecting-address.invalid:8303"),
        ("secret", SECRET),
        ("challenge-secret", CHALLENGE_SECRET),
        ("info-serial", "0"),
    ];
    for (name, value) in changes {
        headers.retain(|(known, _)| known != name);
        headers.extend(value.map(|value| (*name, value)));
    }
    headers
}
