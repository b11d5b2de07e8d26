//! TLS for the page and the API: the certificate and its key, which are read again when their files change, and the handshake.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::http::StatusCode;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tracing::{debug, info, warn};

use super::{HttpService, PageError, reply};
use crate::budget::Kind;
use crate::config::Web;
use crate::hub::Hub;
use crate::net::guard::Admission;
use crate::net::stopped;
use crate::times::rfc3339;

/// How often the files are compared with what is in use.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long before its end a certificate is reported, and how often.
const RENEW_BEFORE: Duration = Duration::from_secs(14 * 86_400);
const REMIND_EVERY: Duration = Duration::from_secs(86_400);
/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 22;

/// TLS with the certificate that is in use.
pub struct Tls {
    certificate: ArcSwap<Certificate>,
    hub: Arc<Hub>,
}

/// One certificate with its key, read and checked together.
pub struct Certificate {
    files: Files,
    /// A hash of both files.
    contents: u64,
    config: Arc<ServerConfig>,
    /// The server's own certificate, the first of the chain.
    own: CertificateDer<'static>,
}

#[derive(Clone, Debug, PartialEq)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// How a connection to a TLS port began.
enum Opened {
    Tls(Box<TlsStream<TcpStream>>),
    /// The client does not use TLS.
    Plain(TcpStream),
}

impl Tls {
    pub fn new(certificate: Certificate, hub: Arc<Hub>) -> Tls {
        certificate.report();
        Tls { certificate: ArcSwap::from_pointee(certificate), hub }
    }

    pub fn set(&self, certificate: Certificate) {
        certificate.report();
        self.certificate.store(Arc::new(certificate));
    }

    /// Whether the certificate in use is for this host.
    pub fn is_for(&self, host: &str) -> bool {
        let certificate = self.certificate.load();
        let (parsed, name) = (ParsedCertificate::try_from(&certificate.own), ServerName::try_from(host));
        matches!((parsed, name), (Ok(parsed), Ok(name)) if verify_server_name(&parsed, &name).is_ok())
    }

    /// Serves a connection, which begins with a handshake. A client that does not use TLS is told so.
    pub async fn serve(
        self: Arc<Tls>,
        service: HttpService,
        stream: TcpStream,
        peer: SocketAddr,
        admission: Arc<Admission>,
    ) {
        let idle = service.entrance.settings().idle;
        let mut stop = service.stop.clone();
        // A reverse proxy connects for many clients.
        let is_proxy = service.entrance.settings().proxies.networks.contains(peer.ip());
        let budgets = || service.entrance.guard.budgets();
        let may_open = || is_proxy || budgets().take(Kind::Tls, self.hub.clock.now(), peer.ip(), 1).is_ok();
        let opened = tokio::select! {
            opened = self.open(stream, idle, may_open) => opened,
            () = stopped(&mut stop) => return,
        };
        match opened {
            Ok(Opened::Tls(stream)) => service.over_tls().serve(stream, peer, admission).await,
            Ok(Opened::Plain(stream)) => service.serve_only(plain(), stream, peer, admission).await,
            Err(error) => debug!(%peer, %error, "TLS handshake failed"),
        }
    }

    /// The TLS handshake, within the idle time and if `may_open` allows it.
    async fn open(&self, stream: TcpStream, idle: Duration, may_open: impl Fn() -> bool) -> io::Result<Opened> {
        let config = self.certificate.load().config.clone();
        let opened = async {
            let mut first = [0];
            match stream.peek(&mut first).await? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ if first != [HANDSHAKE] => Ok(Opened::Plain(stream)),
                _ if !may_open() => Err(io::Error::other("the client's network has no budget left")),
                _ => Ok(Opened::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?))),
            }
        };
        timeout(idle, opened).await?
    }

    /// Follows changes of the files until the program stops. Files that cannot be used are reported once, and the old
    /// certificate stays in use.
    pub async fn follow(self: Arc<Tls>, mut stop: watch::Receiver<bool>) {
        let mut problem = None;
        let mut reminded = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stopped(&mut stop) => return,
            }
            let current = self.certificate.load_full();
            let changed = tokio::task::spawn_blocking(move || current.changed()).await;
            let new_problem = changed.unwrap_or(Ok(None)).map(|changed| self.replace(changed)).err();
            if let Some(PageError(text)) = new_problem.as_ref().filter(|_| new_problem != problem) {
                warn!("{text}. The certificate stays as it was");
            }
            problem = new_problem;
            if reminded.elapsed() > REMIND_EVERY {
                reminded = Instant::now();
                self.certificate.load().report();
            }
        }
    }

    fn replace(&self, changed: Option<Certificate>) {
        // A new configuration may have named other files meanwhile.
        if let Some(new) = changed.filter(|new| new.files == self.certificate.load().files) {
            self.set(new);
            info!("web.tls_certificate: the new certificate is in use");
        }
    }
}

/// Answers on a TLS port to clients that do not use TLS.
fn plain() -> Router {
    Router::new().fallback(|| async { reply::error(StatusCode::BAD_REQUEST, "this port uses TLS: write https://\n") })
}

impl Certificate {
    /// Reads the certificate and key that the configuration names; none if there is no TLS listener.
    pub fn read(web: &Web) -> Result<Option<Certificate>, PageError> {
        let (Some(certificate), Some(key)) = (&web.tls_certificate, &web.tls_key) else { return Ok(None) };
        if web.tls_listen.is_empty() {
            return Ok(None);
        }
        let files = Files { certificate: certificate.clone(), key: key.clone() };
        let (chain, key) = files.read()?;
        Ok(Some(Certificate::new(files, &chain, &key)?))
    }

    /// The certificate that is in the files now, if it is another one.
    fn changed(&self) -> Result<Option<Certificate>, PageError> {
        let (chain, key) = self.files.read()?;
        if hash(&chain, &key) == self.contents {
            return Ok(None);
        }
        Certificate::new(self.files.clone(), &chain, &key).map(Some)
    }

    fn new(files: Files, chain: &[u8], key: &[u8]) -> Result<Certificate, PageError> {
        let Files { certificate: chain_file, key: key_file } = &files;
        let problem = |key: &str, file: &Path, what: &str| PageError(format!("{key}: {}: {what}", file.display()));
        let of_chain = |what: &str| problem("web.tls_certificate", chain_file, what);
        // The reason is not shown: it may quote the key.
        let of_key = |what: &str| problem("web.tls_key", key_file, what);
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|_| of_chain("cannot be read as certificates in PEM"))?;
        let Some(own) = certificates.first().cloned() else {
            return Err(of_chain("has no certificate in PEM (-----BEGIN CERTIFICATE-----)"));
        };
        let no_key = "has no private key in PEM; an encrypted one cannot be used";
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|_| of_key(no_key))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| of_chain(&error.to_string()))?;
        let config = builder.with_no_client_auth().with_single_cert(certificates, private);
        let mut config = config.map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                of_key(&format!("does not belong to the first certificate in {}", chain_file.display()))
            }
            other => of_chain(&other.to_string()),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Certificate { contents: hash(chain, key), config: Arc::new(config), own, files })
    }

    /// Warns about a certificate that clients refuse, or will soon.
    pub fn report(&self) {
        if let Some(text) = advice(&self.own, UnixTime::now()) {
            warn!("web.tls_certificate: {}: {text}", self.files.certificate.display());
        }
    }
}

impl Files {
    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), PageError> {
        let read = |key: &str, path: &Path| {
            let failed = |error| PageError(format!("{key}: {}: cannot be read: {error}", path.display()));
            read_file(path).map_err(failed)
        };
        Ok((read("web.tls_certificate", &self.certificate)?, read("web.tls_key", &self.key)?))
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // Reading a pipe or a device could take forever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hash(chain: &[u8], key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (chain, key).hash(&mut hasher);
    hasher.finish()
}

/// What to do about a certificate that is not valid, or not for long.
fn advice(certificate: &CertificateDer<'_>, now: UnixTime) -> Option<String> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    // The dates are checked first. That nobody is trusted here does not matter.
    let refused_at = |seconds| {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], at, algorithms) {
            Err(Error::InvalidCertificate(error)) => Some(error),
            _ => None,
        }
    };
    let date = |time: UnixTime| rfc3339(time.as_secs()).split('T').next().unwrap_or_default().to_string();
    match (refused_at(now.as_secs())?, refused_at(now.as_secs() + RENEW_BEFORE.as_secs())?) {
        (CertificateError::ExpiredContext { not_after, .. }, _) => {
            Some(format!("it expired on {}: renew it", date(not_after)))
        }
        (CertificateError::NotValidYetContext { not_before, .. }, _) => {
            Some(format!("it is valid only from {} on; is this machine's clock right?", date(not_before)))
        }
        (_, CertificateError::ExpiredContext { not_after, .. }) => {
            Some(format!("it expires on {}: renew it", date(not_after)))
        }
        _ => None,
    }
}
