//! `nfs://host[:port]/path` (in the manner of RFC 2224, with the syntax of RFC 3986).

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

/// Port when the URL names none (RFC 8881 section 2.9.3).
pub const DEFAULT_PORT: u16 = 2049;

/// A place on a server.
///
/// The path is relative to the server's root: with NFSv4 there is one tree, so the difference that RFC 2224 makes
/// between one and two leading slashes is gone. It consists of bytes, since names on servers do; what is not an
/// unreserved ASCII character can be written as `%XX`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NfsUrl {
    host: String,
    port: u16,
    path: Bytes,
}

/// Why a text is not a URL of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It does not begin with `nfs://`.
    #[error("does not begin with nfs://")]
    Scheme,
    /// Nothing stands where the host should.
    #[error("has no host")]
    NoHost,
    /// The host has characters that no host name has, or brackets that do not match.
    #[error("has an invalid host; IPv6 addresses are written in brackets, as in nfs://[::1]/path")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("has an invalid port")]
    Port,
    /// A percent sign without two hexadecimal digits, or an encoded zero byte or slash.
    #[error("has an invalid percent escape")]
    Escape,
    /// A user name: NFS takes users from credentials.
    #[error("names a user, which NFS URLs cannot")]
    User,
}

impl NfsUrl {
    /// Makes a URL of its parts; `path` is taken as it is.
    pub fn new(host: impl Into<String>, port: u16, path: impl Into<Bytes>) -> Self {
        Self { host: host.into(), port, path: path.into() }
    }

    /// Whether `text` is meant to be such a URL rather than a local path.
    pub fn is_url(text: &str) -> bool {
        text.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("nfs://"))
    }

    /// Host name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port; [`DEFAULT_PORT`] when the URL names none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path on the server, decoded, beginning with a slash.
    pub fn path(&self) -> &Bytes {
        &self.path
    }

    /// Whether the URL ends in a slash: "the directory itself" to commands that care.
    pub fn has_trailing_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// This URL with `name` appended to the path.
    #[must_use]
    pub fn join(&self, name: impl AsRef<[u8]>) -> Self {
        let mut path = self.path.to_vec();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_ref());
        Self { path: path.into(), ..self.clone() }
    }

    /// `host:port` for messages and for looking up addresses, with brackets where needed.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for NfsUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if !Self::is_url(text) {
            return Err(UrlError::Scheme);
        }
        let rest = text.get(6..).unwrap_or_default();
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']').ok_or(UrlError::Host)?;
                // A zone ("%eth0") may follow the address.
                let addr = host.split_once('%').map_or(host, |(addr, _)| addr);
                addr.parse::<std::net::Ipv6Addr>().map_err(|_| UrlError::Host)?;
                (host, after)
            }
            // An IPv6 address without brackets.
            None if authority.matches(':').count() > 1 => return Err(UrlError::Host),
            None => {
                let at = authority.find(':').unwrap_or(authority.len());
                let (host, after) = authority.split_at(at);
                let valid = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c) || !c.is_ascii();
                if !host.chars().all(valid) {
                    return Err(UrlError::Host);
                }
                (host, after)
            }
        };
        if host.is_empty() {
            return Err(UrlError::NoHost);
        }
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok().filter(|p| *p != 0).ok_or(UrlError::Port)?
            }
            Some(_) => return Err(UrlError::Port),
            None if port.is_empty() => DEFAULT_PORT,
            None => return Err(UrlError::Host),
        };
        Ok(Self { host: host.to_owned(), port, path: decode(path)? })
    }
}

fn decode(path: &str) -> Result<Bytes, UrlError> {
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or(UrlError::Escape);
        let byte = (digit()? * 16 + digit()?) as u8;
        // An encoded slash would turn one name into two, and no name has a zero byte.
        if byte == 0 || byte == b'/' {
            return Err(UrlError::Escape);
        }
        out.push(byte);
    }
    Ok(out.into())
}

impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nfs://")?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?
        } else {
            f.write_str(&self.host)?
        }
        if self.port != DEFAULT_PORT {
            write!(f, ":{}", self.port)?;
        }
        for b in &self.path {
            if b.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=:@".contains(b) {
                write!(f, "{}", char::from(*b))?;
            } else {
                write!(f, "%{b:02X}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(s: &str) -> Result<(String, u16, Vec<u8>), UrlError> {
        s.parse::<NfsUrl>().map(|u| (u.host.clone(), u.port, u.path.to_vec()))
    }

    #[test]
    fn parts_are_found() {
        let ok = |host: &str, port, path: &[u8]| Ok((host.to_owned(), port, path.to_vec()));
        assert_eq!(parse("nfs://h"), ok("h", 2049, b"/"));
        assert_eq!(parse("NFS://h/"), ok("h", 2049, b"/"));
        assert_eq!(parse("nfs://h.example:1/a/b"), ok("h.example", 1, b"/a/b"));
        assert_eq!(parse("nfs://[::1]/a"), ok("::1", 2049, b"/a"));
        assert_eq!(parse("nfs://[fe80::1%eth0]:20490"), ok("fe80::1%eth0", 20490, b"/"));
        assert_eq!(parse("nfs://10.0.0.1/a%20b%ff%2E"), ok("10.0.0.1", 2049, b"/a b\xff."));
        assert_eq!(parse("nfs://h/a b?c#d"), ok("h", 2049, b"/a b?c#d"));
        assert_eq!(parse("nfs://h//a"), ok("h", 2049, b"//a"));
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parse("http://h/"), Err(UrlError::Scheme));
        assert_eq!(parse("nfs:/h"), Err(UrlError::Scheme));
        assert_eq!(parse("nfs:///x"), Err(UrlError::NoHost));
        assert_eq!(parse("nfs://:5/x"), Err(UrlError::NoHost));
        assert_eq!(parse("nfs://me@h/x"), Err(UrlError::User));
        assert_eq!(parse("nfs://::1/x"), Err(UrlError::Host));
        assert_eq!(parse("nfs://fe80::1:2/x"), Err(UrlError::Host));
        assert_eq!(parse("nfs://[::1/x"), Err(UrlError::Host));
        assert_eq!(parse("nfs://[::1]x/"), Err(UrlError::Host));
        assert_eq!(parse("nfs://h h/"), Err(UrlError::Host));
        for port in ["", "0", "65536", "x", "-1", "+1"] {
            assert_eq!(parse(&format!("nfs://h:{port}/")), Err(UrlError::Port), "{port:?}");
        }
        for escape in ["%", "%4", "%zz", "%00", "%2f", "%2F"] {
            assert_eq!(parse(&format!("nfs://h/{escape}")), Err(UrlError::Escape), "{escape}");
        }
    }

    #[test]
    fn what_is_printed_reads_back() {
        for s in ["nfs://h/", "nfs://[::1]:5/a%20b/%FF%25", "nfs://h:1/%3F%23"] {
            let url: NfsUrl = s.parse().unwrap();
            assert_eq!(url.to_string(), s);
        }
        assert_eq!(NfsUrl::new("h", 2049, "/d").join("x y").to_string(), "nfs://h/d/x%20y");
        assert_eq!(NfsUrl::new("::1", 7, "/").authority(), "[::1]:7");
    }
}
