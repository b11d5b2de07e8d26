//! Where uploads go, as people write it: `scheme://[user@]host[:port][/path]`.

use hyper::Uri;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub scheme: String,
    pub user: Option<String>,
    /// Whether a password stands behind the user. It is not kept: no command takes one this way.
    pub has_password: bool,
    /// A name or an address, an IPv6 one without its brackets.
    pub host: String,
    pub port: Option<u16>,
    /// With its query; `/` or empty where there is none.
    pub path: String,
}

impl Url {
    pub fn parse(text: &str) -> Result<Url, String> {
        let bad = |why: &str| format!("`{}`: {why}", without_password(text));
        let uri: Uri = text.parse().map_err(|error| bad(&format!("not an address: {error}")))?;
        let parts = uri.scheme_str().zip(uri.authority());
        let (scheme, authority) = parts.ok_or_else(|| bad("not an address like scheme://host:port"))?;
        let (user, target) = match authority.as_str().rsplit_once('@') {
            Some((user, target)) => (Some(user), target),
            None => (None, authority.as_str()),
        };
        let (user, has_password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((user, password)) => (Some(user.to_string()), !password.is_empty()),
            None => (None, false),
        };
        let host = authority.host();
        if host.is_empty() || host == "[]" {
            return Err(bad("the host is missing"));
        }
        let port = match target.strip_prefix(host).unwrap_or_default() {
            "" => None,
            written => {
                let port = written.strip_prefix(':').and_then(|digits| digits.parse().ok());
                Some(port.filter(|port| *port > 0).ok_or_else(|| bad("the port must be a number from 1 to 65535"))?)
            }
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let path = uri.path_and_query().map(|path| path.as_str().to_string()).unwrap_or_default();
        Ok(Url { scheme: scheme.to_ascii_lowercase(), user, has_password, host, port, path })
    }
}

/// The text for an error message: whatever stands between the scheme and an `@` is nobody's business.
fn without_password(text: &str) -> String {
    match text.split_once("://").zip(text.rsplit_once('@')) {
        Some(((scheme, rest), (_, place))) if rest.contains('@') => format!("{scheme}://…@{place}"),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn parts() {
        let whole = url("FTPS://example.org:8080/lists/of?mine");
        assert_eq!((&*whole.scheme, &*whole.host), ("ftps", "example.org"));
        assert_eq!((whole.port, &*whole.path), (Some(8080), "/lists/of?mine"));
        let short = url("ftp://example.org");
        assert_eq!((&*short.host, short.port, short.path.trim_matches('/')), ("example.org", None, ""));
        let ipv6 = url("ftp://[::1]:2121");
        assert_eq!((&*ipv6.host, ipv6.port), ("::1", Some(2121)));
        let user = url("ftp://joe@example.org/www");
        assert_eq!((user.user.as_deref(), user.has_password, user.port), (Some("joe"), false, None));
        assert!(url("ftp://joe:secret@example.org").has_password);
    }

    #[test]
    fn mistakes_are_named_and_passwords_are_not() {
        for bad in ["", "example.org", "example.org:21", "/x", "ftp://", "ftp://:1", "a b://c", "x://h h"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
        for port in ["0", "65536", "99999999", "x", "-1"] {
            let error = Url::parse(&format!("ftp://example.org:{port}")).unwrap_err();
            assert!(error.contains("ftp://example.org"), "{error}");
        }
        let error = Url::parse("ftp://joe:secret@example.org:0/").unwrap_err();
        assert!(error.contains("example.org:0") && !error.contains("secret"), "{error}");
    }
}
