//! Binds ports, with errors that name the port and the configuration key.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::{debug, info};

use super::holder::{self, Holder};

/// Pending connections that the system queues.
const BACKLOG: i32 = 4096;
/// Upper bound on unsent bytes in the kernel per connection. The kernel reports a socket as writable only after a third of
/// its buffer is free, so with a large buffer a slow reader would look stalled.
const UNSENT_BYTES_MAX: u32 = 64 << 10;
/// Requested receive buffer, which the system may limit. Large enough that a stall of some milliseconds loses nothing.
const RECEIVE_BUFFER: usize = 8 << 20;
/// With port 0, TCP and UDP should get the same port number, one half of which may be taken.
const SAME_PORT_TRIES: usize = 20;
/// From here on everyone may listen.
const FREE_PORTS: u16 = 1024;

/// A port that could not be bound.
#[derive(Debug)]
pub struct ListenError {
    pub address: SocketAddr,
    pub protocol: &'static str,
    /// The configuration key that names it.
    pub key: String,
    pub error: io::Error,
    /// Who has it, if it is taken and this is known.
    pub holder: Option<Holder>,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenError { address, protocol, key, error, holder } = self;
        let port = address.port();
        write!(f, "cannot listen on {protocol} port {port} ({address}): ")?;
        match (error.kind(), holder) {
            (io::ErrorKind::AddrInUse, Some(Holder { process, .. })) if *process == std::process::id() => {
                write!(f, "another key of this configuration has it. Change `{key}`, or that one")
            }
            (io::ErrorKind::AddrInUse, Some(Holder { name, process })) => {
                write!(f, "another program has it: {name}, process {process}. Stop that program, or change `{key}`")
            }
            (io::ErrorKind::AddrInUse, None) => {
                let table = if *protocol == "TCP" { "-ltnp" } else { "-lunp" };
                write!(
                    f,
                    "another program has it (`sudo ss {table} sport = :{port}` names it). Stop that program, or change `{key}`"
                )
            }
            (io::ErrorKind::PermissionDenied, _) if port < FREE_PORTS => write!(
                f,
                "not allowed: ports below {FREE_PORTS} need a privilege. Choose a higher port in `{key}`, or allow it: under systemd \
                 as docs/https.md says (The service's rights), otherwise with the program's path in the place of PROGRAM: \
                 sudo setcap cap_net_bind_service=+ep PROGRAM"
            ),
            (io::ErrorKind::PermissionDenied, _) => write!(f, "not allowed. Choose another port in `{key}`"),
            (io::ErrorKind::AddrNotAvailable, _) => write!(
                f,
                "this machine has no such address. Change `{key}`: 0.0.0.0 is all IPv4 addresses of this machine, [::] all of IPv6"
            ),
            _ => write!(f, "{error}. See `{key}`"),
        }
    }
}

impl std::error::Error for ListenError {}

impl ListenError {
    fn new(address: SocketAddr, protocol: &'static str, key: &str, error: io::Error) -> ListenError {
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        let holder = is_taken.then(|| holder::find(protocol, address)).flatten();
        ListenError { address, protocol, key: key.into(), error, holder }
    }

    /// Whether this is `[::]` on a machine without IPv6.
    fn is_missing_ipv6(&self) -> bool {
        let errors = [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL, Errno::EPROTONOSUPPORT];
        let is_missing = self.error.raw_os_error().is_some_and(|code| errors.contains(&Errno::from_raw(code)));
        is_missing && self.address.ip() == Ipv6Addr::UNSPECIFIED
    }
}

/// Binds every address of one key. On a machine without IPv6, `[::]` is skipped unless it is the only address: the default
/// names both families and must work everywhere.
pub fn all<T>(
    addresses: &[SocketAddr],
    bind: impl Fn(SocketAddr) -> Result<T, ListenError>,
) -> Result<Vec<T>, ListenError> {
    let mut bound = Vec::with_capacity(addresses.len());
    let mut skipped = None;
    for &address in addresses {
        match bind(address) {
            Ok(socket) => bound.push(socket),
            Err(error) if error.is_missing_ipv6() => skipped = Some(error),
            Err(error) => return Err(error),
        }
    }
    match skipped {
        Some(error) if bound.is_empty() => return Err(error),
        Some(error) => info!("{}: not listening on {}: this machine has no IPv6", error.key, error.address),
        None => {}
    }
    Ok(bound)
}

pub fn tcp(address: SocketAddr, key: &str) -> Result<TcpListener, ListenError> {
    listener(address, false).map_err(|error| ListenError::new(address, "TCP", key, error))
}

/// Up to `count` listeners on the address of this one; the system distributes the connections among them. Like a UDP port, it is
/// shared only after the first has bound it alone.
pub fn share(first: TcpListener, count: usize) -> Vec<TcpListener> {
    let more = || -> io::Result<Vec<TcpListener>> {
        let address = first.local_addr()?;
        socket2::SockRef::from(&first).set_reuse_port(true)?;
        (1..count).map(|_| listener(address, true)).collect()
    };
    // One is enough to serve; it is only slower.
    let more = more().unwrap_or_else(|error| {
        debug!(%error, "cannot share a TCP port");
        Vec::new()
    });
    std::iter::once(first).chain(more).collect()
}

/// Among listeners that share a port, this one gets the connections that arrive on a processor. Without one, or where none of them
/// has that processor, the system distributes them by their addresses and ports. So does Linux before 6.2, always.
pub fn prefer(listener: &TcpListener, processor: Option<usize>) {
    // None is -1 for the system.
    if let Err(error) = socket2::SockRef::from(listener).set_cpu_affinity(processor.unwrap_or(usize::MAX)) {
        debug!(%error, "cannot get the connections of a processor");
    }
}

/// `count` sockets on one address; the system distributes the senders among them.
pub fn udp(address: SocketAddr, count: usize, key: &str) -> Result<Vec<UdpSocket>, ListenError> {
    bind_udp(address, count).map_err(|error| ListenError::new(address, "UDP", key, error))
}

/// TCP and UDP on the same port number, also when the system chooses it.
pub fn tcp_and_udp(
    address: SocketAddr,
    udp_count: usize,
    key: &str,
) -> Result<(TcpListener, Vec<UdpSocket>), ListenError> {
    let mut tries = 0;
    loop {
        let tcp_listener = tcp(address, key)?;
        let bound = tcp_listener.local_addr().unwrap_or(address);
        tries += 1;
        match udp(bound, udp_count, key) {
            Ok(sockets) => return Ok((tcp_listener, sockets)),
            Err(_) if address.port() == 0 && tries < SAME_PORT_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

fn listener(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    only_its_family(&socket, address)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    // Connections inherit these options.
    socket.set_tcp_nodelay(true)?;
    let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX); // optional: not every system has it
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The first socket binds the port exclusively and shares it only afterwards. If it were shared from the start, it could
/// join the port of another program of the same user, and each would get some of the other's datagrams.
fn bind_udp(address: SocketAddr, count: usize) -> io::Result<Vec<UdpSocket>> {
    let first = udp_socket(address, false)?;
    let address = first.local_addr()?;
    socket2::SockRef::from(&first).set_reuse_port(true)?;
    let mut sockets = vec![first];
    while sockets.len() < count {
        sockets.push(udp_socket(address, true)?);
    }
    Ok(sockets)
}

/// `[::]` is IPv6 only, so that `0.0.0.0` can be bound beside it.
fn only_its_family(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() { socket.set_only_v6(true) } else { Ok(()) }
}

fn udp_socket(address: SocketAddr, shared: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    only_its_family(&socket, address)?;
    socket.set_reuse_port(shared)?;
    if let Err(error) = socket.set_recv_buffer_size(RECEIVE_BUFFER) {
        debug!(%error, "cannot enlarge the receive buffer");
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::cores::processors;
    use nix::sched::{CpuSet, sched_setaffinity};
    use nix::unistd::Pid;
    use std::iter::from_fn;
    use std::net::TcpStream;

    #[test]
    fn a_listener_gets_the_connections_of_a_processor_or_none_in_particular() {
        let first = tcp("127.0.0.1:0".parse().unwrap(), "test.listen").unwrap();
        for listener in share(first, 2) {
            let preferred = || socket2::SockRef::from(&listener).cpu_affinity().unwrap() as i32;
            prefer(&listener, Some(0));
            assert_eq!(preferred(), 0);
            prefer(&listener, None);
            assert_eq!(preferred(), -1, "as in a new socket");
        }
    }

    #[test]
    fn connections_go_where_their_processor_is_preferred() {
        // Elsewhere there is nothing to see: one processor has all connections, and older systems distribute them.
        let processors: Vec<usize> = processors().take(2).collect();
        if processors.len() < 2 || !is_linux_6_2() {
            return;
        }
        let first = tcp("127.0.0.1:0".parse().unwrap(), "test.listen").unwrap();
        let address = first.local_addr().unwrap();
        let listeners = share(first, 2);
        let arrived = || {
            let clients: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
            let counts: Vec<_> = listeners.iter().map(|listener| from_fn(|| listener.accept().ok()).count()).collect();
            assert_eq!(counts.iter().sum::<usize>(), clients.len());
            counts
        };
        // Connections over loopback arrive where they are made.
        for (number, processor) in processors.iter().enumerate() {
            let mut only = CpuSet::new();
            only.set(*processor).unwrap();
            sched_setaffinity(Pid::from_raw(0), &only).unwrap(); // this test's own thread
            listeners.iter().zip(&processors).for_each(|(listener, processor)| prefer(listener, Some(*processor)));
            assert_eq!(arrived()[number], 32);
            listeners.iter().for_each(|listener| prefer(listener, None));
            assert!(
                arrived().iter().all(|count| *count > 0),
                "distributed by chance, once in a billion times to one only"
            );
        }
    }

    fn is_linux_6_2() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let numbers: Vec<u32> =
            release.split(|it: char| !it.is_ascii_digit()).take(2).map_while(|it| it.parse().ok()).collect();
        numbers >= vec![6, 2]
    }

    #[test]
    fn connections_inherit_the_listeners_options() {
        let listener = tcp("127.0.0.1:0".parse().unwrap(), "a.key").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let connection = loop {
            match listener.accept() {
                Ok((connection, _)) => break socket2::SockRef::from(&connection).try_clone().unwrap(),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        assert!(connection.tcp_nodelay().unwrap());
        assert_eq!(connection.tcp_notsent_lowat().unwrap(), UNSENT_BYTES_MAX);
    }

    #[test]
    fn listeners_on_one_port_share_its_connections_and_no_other_program_does() {
        let first = tcp("127.0.0.1:0".parse().unwrap(), "a.key").unwrap();
        let address = first.local_addr().unwrap();
        assert!(listener(address, true).is_err(), "it is not shared yet");
        let listeners = share(first, 3);
        assert_eq!(listeners.len(), 3);
        assert!(tcp(address, "a.key").is_err(), "another start of this program");
        let mut served = [false; 3];
        let mut clients = Vec::new();
        while served.contains(&false) {
            clients.push(std::net::TcpStream::connect(address).unwrap());
            for (listener, served) in listeners.iter().zip(&mut served) {
                *served |= listener.accept().is_ok();
            }
            assert!(clients.len() < 1_000, "{served:?}");
        }
        assert_eq!(share(tcp("127.0.0.1:0".parse().unwrap(), "a.key").unwrap(), 1).len(), 1);
    }

    #[test]
    fn a_taken_port_is_named_with_its_key() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (taken_tcp, taken_udp) = tcp_and_udp(any, 2, "a.key").unwrap();
        let address = taken_tcp.local_addr().unwrap();
        assert_eq!(taken_udp[1].local_addr().unwrap(), address);
        for (error, protocol) in
            [(tcp(address, "web.listen").unwrap_err(), "TCP"), (udp(address, 2, "web.listen").unwrap_err(), "UDP")]
        {
            let text = error.to_string();
            assert!(text.contains(&format!("{protocol} port {} ", address.port())), "{text}");
            assert!(text.contains("another key of this configuration has it"), "{text}");
            let others = ListenError { holder: None, ..error }.to_string();
            assert!(others.contains("another program has it") && others.contains("`web.listen`"), "{others}");
        }
    }

    #[test]
    fn a_low_port_says_how_to_get_the_right_to_it() {
        let text = |address: &str| {
            ListenError::new(address.parse().unwrap(), "TCP", "web.listen", Errno::EACCES.into()).to_string()
        };
        let low = text("0.0.0.0:80");
        assert!(low.contains("higher port in `web.listen`") && low.contains("setcap"), "{low}");
        assert!(!text("0.0.0.0:8080").contains("setcap"));
    }

    #[test]
    fn only_the_unspecified_ipv6_address_is_skipped_and_only_without_ipv6() {
        let bind = |typed: &[&str], errno: Errno| {
            let addresses: Vec<SocketAddr> = typed.iter().map(|text| text.parse().unwrap()).collect();
            all(&addresses, |address| match address.is_ipv4() {
                true => Ok(address.to_string()),
                false => Err(ListenError::new(address, "TCP", "a.key", errno.into())),
            })
        };
        for errno in [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL, Errno::EPROTONOSUPPORT] {
            assert_eq!(bind(&["0.0.0.0:1", "[::]:1"], errno).unwrap(), ["0.0.0.0:1"]);
            assert_eq!(bind(&["[::]:1", "127.0.0.1:1"], errno).unwrap(), ["127.0.0.1:1"]);
            assert!(bind(&["[::]:1"], errno).is_err(), "it would listen on nothing");
            assert!(bind(&["0.0.0.0:1", "[::1]:1"], errno).is_err(), "the operator named it");
        }
        assert!(bind(&["0.0.0.0:1", "[::]:1"], Errno::EADDRINUSE).is_err());
        assert_eq!(bind(&[], Errno::EADDRINUSE).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn sockets_on_one_port_share_its_senders() {
        let sockets = udp("127.0.0.1:0".parse().unwrap(), 2, "a.key").unwrap();
        let address = sockets[0].local_addr().unwrap();
        sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let has_some = |socket: &UdpSocket| socket.peek(&mut [0]).is_ok();
        for _ in 0..1000 {
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", address).unwrap();
            if sockets.iter().all(has_some) {
                return;
            }
        }
        panic!("not every socket received a datagram");
    }
}
