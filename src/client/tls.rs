//! TLS for `https://`, with the system's trusted certificates and readable errors. `SSL_CERT_FILE` and `SSL_CERT_DIR` replace
//! the system's certificates.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

use crate::times::rfc3339;

pub const NO_CERTIFICATES: &str = "this system has no trusted certificates: install ca-certificates, or check \
                                   SSL_CERT_FILE and SSL_CERT_DIR";

/// Chosen explicitly: another dependency may add a second provider.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates that this system trusts.
pub fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Starts TLS on a connection to `host`, a name or an IP address.
pub async fn start(stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
    // Reading the system's certificates is slow, and a list may have a thousand pages.
    static CONNECTOR: OnceLock<Result<TlsConnector, String>> = OnceLock::new();
    let connector = CONNECTOR.get_or_init(connector).as_ref().map_err(|why| io::Error::other(why.clone()))?;
    let bad_name = |_| io::Error::other(format!("`{host}` cannot be the name in a certificate"));
    let name = ServerName::try_from(host.to_string()).map_err(bad_name)?;
    connector.connect(name, stream).await.map_err(|error| {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(refused) => io::Error::other(in_words(refused, host)),
            None => io::Error::new(error.kind(), format!("the TLS handshake failed ({error}); does it use TLS?")),
        }
    })
}

fn connector() -> Result<TlsConnector, String> {
    let roots = roots();
    if roots.is_empty() {
        return Err(NO_CERTIFICATES.into());
    }
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("no TLS: {error}"))?.with_root_certificates(roots);
    Ok(TlsConnector::from(Arc::new(config.with_no_client_auth())))
}

/// Why TLS failed, and what can be done about it.
fn in_words(error: &Error, host: &str) -> String {
    let Error::InvalidCertificate(error) = error else {
        return match error {
            Error::InvalidMessage(_) => "it does not use TLS on this port; try http://".into(),
            other => format!("TLS failed: {other}"),
        };
    };
    match error {
        CertificateError::UnknownIssuer => {
            "its certificate is not trusted: it is not signed by an authority that this system trusts \
             (SSL_CERT_FILE can name others)"
                .into()
        }
        CertificateError::Expired => "its certificate has expired".into(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("its certificate expired on {}", date(*not_after))
        }
        CertificateError::NotValidYet => "its certificate is not valid yet; is this machine's clock right?".into(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is valid only from {} on; is this machine's clock right?", date(*not_before))
        }
        CertificateError::NotValidForName => format!("its certificate is not for {host}"),
        CertificateError::NotValidForNameContext { presented, .. } => {
            format!("its certificate is not for {host}, but for {}", names(presented))
        }
        CertificateError::Revoked => "its certificate has been revoked".into(),
        other => format!("its certificate is not trusted: {other}"),
    }
}

fn date(time: UnixTime) -> String {
    rfc3339(time.as_secs()).split('T').next().unwrap_or_default().to_string()
}

/// The first of a certificate's names; there may be hundreds. rustls formats them as `DnsName("example.org")`.
fn names(presented: &[String]) -> String {
    const SHOWN: usize = 3;
    let inner = |name: &String| name.split('"').nth(1).unwrap_or(name).to_string();
    let mut names: Vec<String> = presented.iter().take(SHOWN).map(inner).collect();
    if presented.len() > SHOWN {
        names.push("others".into());
    }
    if names.is_empty() { "no name at all".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_certificate() {
        let presented: Vec<String> = (1..=9).map(|n| format!("DnsName(\"h{n}.example\")")).collect();
        assert_eq!(names(&presented), "h1.example, h2.example, h3.example, others");
        assert_eq!(names(&presented[..1]), "h1.example");
        assert_eq!(names(&[]), "no name at all");
    }
}
