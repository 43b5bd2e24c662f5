//! Ports of the loopback that stay with one test.

use std::net::SocketAddr;
use tokio::net::TcpSocket;

/// A port that the kernel gives to nobody else while this lives, for a server that restarts: its listener is gone for a
/// moment then, in which another test could be given the port, for a listener or as the near end of a connection.
///
/// The socket is bound and never listens. Whoever asks for this very port, with `SO_REUSEADDR`, may bind it all the same.
/// Connections while nobody else listens are refused.
#[derive(Debug)]
pub struct Reserved {
    addr: SocketAddr,
    _socket: TcpSocket,
}

impl Reserved {
    /// A free port of 127.0.0.1.
    ///
    /// # Panics
    /// There is none.
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        Self { addr: socket.local_addr().unwrap(), _socket: socket }
    }

    /// Where it is.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Default for Reserved {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn listeners_come_and_go_and_nobody_else_gets_the_port() {
        let port = Reserved::new();
        for _ in 0..3 {
            // As the standard library and every server here do, with SO_REUSEADDR.
            let listener = TcpListener::bind(port.addr()).unwrap();
            let near = TcpStream::connect(port.addr()).unwrap();
            drop((listener.accept().unwrap(), near, listener));
            assert_eq!(TcpStream::connect(port.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
        let strict = TcpSocket::new_v4().unwrap();
        assert_eq!(strict.bind(port.addr()).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
