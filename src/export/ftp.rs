//! Uploads a file to an FTP server: passive mode, plain FTP or explicit FTPS, under a temporary name and then renamed, so
//! that no reader sees a partial file.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use suppaftp::tokio::{AsyncRustlsConnector, AsyncRustlsFtpStream};
use suppaftp::types::FileType;
use suppaftp::{FtpError, Mode};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use url::{ParseError, Position, Url};

use crate::client::target::without_login;
use crate::client::tls;
use crate::text;

/// The environment variable with the password, if no file is given.
pub const PASSWORD_VARIABLE: &str = "RALLYPOINT_FTP_PASSWORD";

const PORT: u16 = 21;
const PASSWORD_BYTES_MAX: usize = 1 << 10;
/// The slowest upload that does not time out, in bytes per second.
const UPLOAD_RATE_MIN: u64 = 8 << 10;
const ERROR_CHARS_MAX: usize = 200;

/// `ftp://user@host[:port]/folder`, or `ftps://` for TLS. The folder is relative to the login folder; `//folder` is absolute.
/// `%40` is an `@` in the user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtpFolder {
    secure: bool,
    user: String,
    host: String,
    port: u16,
    folder: String,
}

impl FtpFolder {
    pub fn parse(text: &str) -> Result<FtpFolder, String> {
        let typed = without_login(text);
        let bad = |why: &str| format!("`{typed}`: {why}");
        let not_an_address = |error| bad(&format!("not an address like ftp://user@host/folder: {error}"));
        let url = Url::parse(text).map_err(not_an_address)?;
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| not_an_address(ParseError::EmptyHost))?;
        let secure = match url.scheme() {
            "ftp" => false,
            "ftps" => true,
            _ => return Err(bad("the scheme must be ftp or ftps")),
        };
        if url.password().is_some() {
            return Err(bad(&format!(
                "a password on the command line is visible to every user of this machine; \
                 put it into {PASSWORD_VARIABLE} or into a file (--ftp-password-file), and change it"
            )));
        }
        let port = url.port().unwrap_or(PORT);
        if port == 0 {
            return Err(bad("the port must be a number from 1 to 65535"));
        }
        let decode = |text: &str| percent_decode_str(text).decode_utf8().map(|text| text.into_owned());
        let user = decode(url.username()).map_err(|_| bad("the user is not UTF-8"))?;
        let folder = &url[Position::BeforePath..Position::AfterQuery];
        let folder = folder.strip_prefix('/').unwrap_or_default();
        let folder = decode(folder).map_err(|_| bad("the folder is not UTF-8"))?;
        if user.is_empty() {
            return Err(bad(&format!("the user is missing, as in {}://user@{host}/", url.scheme())));
        }
        if !is_line(&user) || !is_line(&folder) {
            return Err(bad("it contains control characters"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        Ok(FtpFolder { secure, user, host, port, folder })
    }

    /// Whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.secure
    }
}

/// For messages, without the user.
impl fmt::Display for FtpFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "ftps" } else { "ftp" };
        write!(f, "{scheme}://{}:{}/{}", self.host, self.port, self.folder)
    }
}

/// A password that is never shown in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl Password {
    /// From the file, if one is given; otherwise from the value of [`PASSWORD_VARIABLE`].
    pub fn find(file: Option<&Path>, variable: Option<String>) -> Result<Password, String> {
        let (text, source) = match (file, variable) {
            (Some(file), _) => {
                let text = std::fs::read_to_string(file);
                let text = text.map_err(|error| format!("{}: cannot be read: {error}", file.display()))?;
                (text.trim_end_matches(['\r', '\n']).to_string(), file.display().to_string())
            }
            (None, Some(text)) => (text, PASSWORD_VARIABLE.into()),
            (None, None) => {
                return Err(format!(
                    "the FTP password is missing: put it into {PASSWORD_VARIABLE} or into a file (--ftp-password-file)"
                ));
            }
        };
        if text.is_empty() || text.len() > PASSWORD_BYTES_MAX || !is_line(&text) {
            return Err(format!("{source}: must contain the password, on one line"));
        }
        Ok(Password(text))
    }
}

/// Whether the text fits in one line of the FTP protocol.
fn is_line(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Certificates to trust in addition to the system's, in PEM: an authority's, or the server's own.
    pub ca_file: Option<PathBuf>,
    /// Timeout for each step.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { ca_file: None, timeout: Duration::from_secs(20) }
    }
}

/// Uploads `bytes` to the target's folder as `name`: under a temporary name, then renamed over the old file. After an error,
/// the old file is unchanged.
pub async fn upload(
    target: &FtpFolder,
    password: &Password,
    settings: &Settings,
    name: &str,
    bytes: &[u8],
) -> Result<(), String> {
    if name.is_empty() || name.contains('/') || !is_line(name) {
        return Err(format!("`{}` cannot be a file name on a server", text::clean(name.as_bytes())));
    }
    let result = Upload { target, settings }.run(password, name, bytes).await;
    result.map_err(|error| format!("{target}: {error}"))
}

struct Upload<'a> {
    target: &'a FtpFolder,
    settings: &'a Settings,
}

impl Upload<'_> {
    async fn run(&self, password: &Password, name: &str, bytes: &[u8]) -> Result<(), Wrong> {
        let FtpFolder { user, folder, .. } = self.target;
        let mut server = self.connect().await?;
        self.step(&format!("log in as {user}"), server.login(user.as_str(), &password.0)).await?;
        if !folder.is_empty() {
            self.step(&format!("change to the folder {folder}"), server.cwd(folder)).await?;
        }
        self.step("set the binary mode", server.transfer_type(FileType::Binary)).await?;
        let temporary = format!("{name}.part");
        let mut stored = self.store(&mut server, &temporary, bytes).await;
        if stored.is_ok() {
            stored = self.rename(&mut server, &temporary, name).await;
        }
        if matches!(stored, Err(Wrong::Refused(_))) {
            // Remove the partial file, if there is one.
            let _ = self.step("clean up", server.rm(&temporary)).await;
        }
        stored?;
        let _ = self.step("log out", server.quit()).await; // the upload is done
        Ok(())
    }

    async fn connect(&self) -> Result<AsyncRustlsFtpStream, Wrong> {
        let FtpFolder { secure, host, port, .. } = self.target;
        let dial = async { TcpStream::connect((host.as_str(), *port)).await.map_err(FtpError::ConnectionError) };
        let stream = self.step("connect", dial).await?;
        let is_ipv6 = stream.peer_addr().is_ok_and(|peer| peer.is_ipv6());
        let mut server = self.step("get a greeting", AsyncRustlsFtpStream::connect_with_stream(stream)).await?;
        if *secure {
            let connector =
                AsyncRustlsConnector::from(connector(self.settings.ca_file.as_deref()).map_err(Wrong::Refused)?);
            server = self.step("start TLS", server.into_secure(connector, host)).await?;
        }
        // PASV supports only IPv4. The address in its reply is ignored: data goes to the server we are connected to.
        server.set_mode(if is_ipv6 { Mode::ExtendedPassive } else { Mode::Passive });
        server.set_passive_nat_workaround(true);
        Ok(server)
    }

    async fn store(&self, server: &mut AsyncRustlsFtpStream, name: &str, mut bytes: &[u8]) -> Result<(), Wrong> {
        let time = self.settings.timeout + Duration::from_secs(bytes.len() as u64 / UPLOAD_RATE_MIN);
        within(time, &format!("store {name}"), server.put_file(name, &mut bytes)).await.map(drop)
    }

    async fn rename(&self, server: &mut AsyncRustlsFtpStream, temporary: &str, name: &str) -> Result<(), Wrong> {
        let step = format!("rename {temporary} to {name}");
        let wrong = match self.step(&step, server.rename(temporary, name)).await {
            Err(wrong @ Wrong::Refused(_)) => wrong,
            done_or_lost => return done_or_lost,
        };
        // Some servers do not rename over an existing file. Move that out of the way, and back if it was not the reason.
        let old = format!("{name}.old");
        let _ = self.step("remove an older file", server.rm(&old)).await; // usually there is none
        if self.step("rename the old file", server.rename(name, old.as_str())).await.is_err() {
            return Err(wrong);
        }
        if let Err(wrong) = self.step(&step, server.rename(temporary, name)).await {
            let _ = self.step("restore the old file", server.rename(old.as_str(), name)).await;
            return Err(wrong);
        }
        let _ = self.step("remove the old file", server.rm(&old)).await; // the new one is in place
        Ok(())
    }

    async fn step<T>(&self, what: &str, doing: impl Future<Output = Result<T, FtpError>>) -> Result<T, Wrong> {
        within(self.settings.timeout, what, doing).await
    }
}

/// What went wrong, as a message.
enum Wrong {
    /// A step was refused; the session can continue.
    Refused(String),
    /// The session cannot continue.
    Lost(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Wrong::Refused(words) | Wrong::Lost(words)) = self;
        f.write_str(words)
    }
}

async fn within<T>(time: Duration, what: &str, doing: impl Future<Output = Result<T, FtpError>>) -> Result<T, Wrong> {
    match timeout(time, doing).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            let words = format!("cannot {what}: {}", in_words(&error));
            let refused = matches!(error, FtpError::UnexpectedResponse(_));
            Err(if refused { Wrong::Refused(words) } else { Wrong::Lost(words) })
        }
        Err(_) => Err(Wrong::Lost(format!("cannot {what}: no answer within {} s", time.as_secs_f32()))),
    }
}

fn in_words(error: &FtpError) -> String {
    let words = match error {
        FtpError::ConnectionError(error) => error.to_string(),
        FtpError::SecureError(error) => error.clone(),
        FtpError::UnexpectedResponse(response) => {
            // The reply starts with its code.
            format!("the server replied {}", String::from_utf8_lossy(&response.body).trim())
        }
        error => error.to_string(),
    };
    text::clean(words.as_bytes()).chars().take(ERROR_CHARS_MAX).collect()
}

/// TLS that trusts the system's certificates and those in the file.
fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, String> {
    let named = ca_file.map(certificates).transpose()?.unwrap_or_default();
    let mut roots = tls::roots();
    roots.add_parsable_certificates(named.iter().cloned());
    let provider = tls::provider();
    let default = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let default = default.map_err(|_| tls::NO_CERTIFICATES)?;
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("no TLS: {error}"))?.dangerous();
    let config = config.with_custom_certificate_verifier(Arc::new(Trust { default, named })).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(format!("{}: contains no certificates", file.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: contains no certificates: {error}", file.display())),
    }
}

/// The default verification, except that a certificate given by the user is trusted as it is. Most FTP servers have a
/// self-signed one, which the default verification rejects as a server certificate.
#[derive(Debug)]
struct Trust {
    default: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.named.iter().any(|named| named == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        self.default.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.default.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.default.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.default.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_as_people_write_them() {
        let target = FtpFolder::parse("ftp://joe@example.org/www/lists").unwrap();
        assert_eq!((target.is_secure(), target.user.as_str(), target.port), (false, "joe", 21));
        assert_eq!((target.host.as_str(), target.folder.as_str()), ("example.org", "www/lists"));
        let target = FtpFolder::parse("ftps://joe%40example.org@ftp.example.org:2121//srv/my%20www/").unwrap();
        assert_eq!((target.is_secure(), target.user.as_str(), target.port), (true, "joe@example.org", 2121));
        assert_eq!(target.folder, "/srv/my www/");
        assert_eq!(target.to_string(), "ftps://ftp.example.org:2121//srv/my www/");
        assert_eq!(FtpFolder::parse("ftp://joe@example.org").unwrap().folder, "");
        assert_eq!(FtpFolder::parse("ftp://joe@[::1]/x").unwrap().host, "::1");
    }

    #[test]
    fn mistakes_are_named_and_a_password_is_not() {
        for (text, says) in [
            ("ftp://joe:secret@example.org/", "RALLYPOINT_FTP_PASSWORD"),
            ("ftps://joe:secret@example.org/", "--ftp-password-file"),
            ("http://joe@example.org/", "must be ftp or ftps"),
            ("ftp://example.org/", "user is missing"),
            ("ftp://joe%0d%0aDELE@example.org/", "control characters"),
            ("ftp://joe@example.org/a%0ab", "control characters"),
            ("ftp://joe@example.org/%ff", "folder is not UTF-8"),
            ("example.org", "not an address"),
            ("ftp://joe@example.org:0/", "port"),
            ("ftp://joe:secret@example.org:x/", "port"),
            ("ftp://joe:secret@example.org:65536/", "`ftp://…@example.org:65536/`"),
            ("example.org:21", "not an address"),
            ("", "not an address"),
            ("ftp://", "not an address"),
            ("ftps://:1", "not an address"),
            ("ftp://joe@h h/", "not an address"),
        ] {
            let error = FtpFolder::parse(text).unwrap_err();
            assert!(error.contains(says) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn the_password_from_a_file_or_the_environment() {
        let folder = std::env::temp_dir();
        let file = folder.join(format!("rallypoint-password-{}", std::process::id()));
        std::fs::write(&file, "from a file\r\n").unwrap();
        let found = |file: Option<&Path>, variable: Option<&str>| Password::find(file, variable.map(String::from));
        assert_eq!(found(Some(&file), Some("from the environment")), Ok(Password("from a file".into())));
        assert_eq!(found(None, Some("from the environment")), Ok(Password("from the environment".into())));
        assert!(found(None, None).unwrap_err().contains(PASSWORD_VARIABLE));
        for bad in ["", "\n", "two\nlines"] {
            std::fs::write(&file, bad).unwrap();
            assert!(found(Some(&file), None).unwrap_err().contains("one line"), "{bad:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(found(Some(&file), None).unwrap_err().contains("cannot be read"));
        assert_eq!(format!("{:?}", Password("secret".into())), "Password(…)");
    }
}
