//! The configuration file of `dhow serve`: TOML, read by a table of keys so that every mistake names its line.

use crate::export::{self, Export};
use crate::value::{Value, Wrong};
use crate::words::nearest;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What `dhow serve` is to do.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Addresses to listen on; empty: the default.
    pub listen: Vec<SocketAddr>,
    /// Where durable state lies; `None`: the default.
    pub state_dir: Option<PathBuf>,
    /// What is logged.
    pub log: Option<String>,
    /// The exports.
    pub exports: Vec<Export>,
    /// Limits and times of the server.
    pub server: crate::settings::Settings,
}

/// A mistake in a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    /// From 1; 0 if no line is to blame.
    line: usize,
    message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.file, self.message)
        } else {
            write!(f, "{}:{}: {}", self.file, self.line, self.message)
        }
    }
}

type Set = fn(&mut Config, &Value) -> Result<(), Wrong>;

/// The settings outside of exports that are not limits or times.
const KEYS: &[(&str, Set)] = &[
    ("listen", |c, v| {
        c.listen = v
            .list()?
            .iter()
            .map(|t| parse_listen(t))
            .collect::<Result<_, _>>()
            .map_err(|e| format!("is wrong: {e}"))?;
        Ok(())
    }),
    ("state_dir", |c, v| {
        c.state_dir = Some(v.text()?.into());
        Ok(())
    }),
    ("log", |c, v| {
        c.log = Some(v.text()?.to_owned());
        Ok(())
    }),
];

/// An address to listen on: `ADDR:PORT`, `[ADDR6]:PORT`, or `:PORT` for all addresses.
pub fn parse_listen(text: &str) -> Result<SocketAddr, Wrong> {
    let all = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    all.as_deref()
        .unwrap_or(text)
        .parse()
        .map_err(|_| format!("`{text}` is not an address; write ADDR:PORT, for example 0.0.0.0:2049 or [::]:2049"))
}

/// Every key outside of `[[export]]`.
pub fn keys() -> impl Iterator<Item = &'static str> + Clone {
    KEYS.iter().map(|k| k.0).chain(crate::settings::KEYS.iter().map(|k| k.name))
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The first mistake, with its line and the remedy.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &file),
            Err(e) => Err(ConfigError { file, line: 0, message: format!("cannot be read: {e}") }),
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let reader = Reader { text, file };
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(e) => return Err(reader.wrong(e.span().unwrap_or(0..0), e.message().to_owned())),
        };
        let mut config = Self::default();
        reader.settings(table.get_ref(), "", &mut config)?;
        Ok(config)
    }
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
}

impl Reader<'_> {
    fn wrong(&self, at: Range<usize>, message: String) -> ConfigError {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        ConfigError { file: self.file.to_owned(), line: before.matches('\n').count() + 1, message }
    }

    /// Reads the settings of a table whose name is `prefix` (empty, or with a dot at its end).
    fn settings(&self, table: &DeTable<'_>, prefix: &str, config: &mut Config) -> Result<(), ConfigError> {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            let set = |config: &mut Config, value: &Value| -> Option<Result<(), Wrong>> {
                if let Some(known) = KEYS.iter().find(|k| k.0 == name) {
                    return Some((known.1)(config, value));
                }
                let known = crate::settings::KEYS.iter().find(|k| k.name == name)?;
                Some((known.set)(&mut config.server, value))
            };
            if name == "export" {
                self.exports(value, config)?;
                continue;
            }
            if let DeValue::Table(inner) = value.get_ref()
                && keys().any(|k| k.strip_prefix(&name).is_some_and(|rest| rest.starts_with('.')))
            {
                self.settings(inner, &format!("{name}."), config)?;
                continue;
            }
            if !keys().any(|k| k == name) {
                return Err(self.unknown(key, &name, keys().chain(["export"])));
            }
            let plain = self.value(&name, value)?;
            if let Some(Err(e)) = set(config, &plain) {
                return Err(self.wrong(value.span(), format!("`{name}` {e}")));
            }
        }
        Ok(())
    }

    fn exports(&self, value: &Spanned<DeValue<'_>>, config: &mut Config) -> Result<(), ConfigError> {
        let shape = || self.wrong(value.span(), "exports are written as [[export]], with two brackets".into());
        let DeValue::Array(list) = value.get_ref() else { return Err(shape()) };
        for item in list {
            let DeValue::Table(table) = item.get_ref() else { return Err(shape()) };
            let mut export = Export::new("", "");
            self.export(table, "", &mut export)?;
            for (given, key) in [(!export.name.is_empty(), "name"), (!export.dir.as_os_str().is_empty(), "dir")] {
                if !given {
                    return Err(self.wrong(item.span(), format!("this export lacks `{key}`")));
                }
            }
            config.exports.push(export);
        }
        Ok(())
    }

    fn export(&self, table: &DeTable<'_>, prefix: &str, export: &mut Export) -> Result<(), ConfigError> {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            if let Some(known) = export::KEYS.iter().find(|k| k.name == name) {
                let plain = self.value(&name, value)?;
                (known.set)(export, &plain).map_err(|e| self.wrong(value.span(), format!("`{name}` {e}")))?;
            } else if let DeValue::Table(inner) = value.get_ref()
                && export::KEYS.iter().any(|k| k.name.strip_prefix(&name).is_some_and(|rest| rest.starts_with('.')))
            {
                self.export(inner, &format!("{name}."), export)?;
            } else {
                return Err(self.unknown(key, &name, export::KEYS.iter().map(|k| k.name)));
            }
        }
        Ok(())
    }

    fn unknown(
        &self,
        key: &Spanned<toml::de::DeString<'_>>,
        name: &str,
        known: impl Iterator<Item = &'static str> + Clone,
    ) -> ConfigError {
        let message = match nearest(name, known.clone()) {
            Some(near) => format!("unknown key `{name}`; did you mean `{near}`?"),
            None => format!("unknown key `{name}`; known here are {}", known.collect::<Vec<_>>().join(", ")),
        };
        self.wrong(key.span(), message)
    }

    fn value(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Value, ConfigError> {
        let wrong = |what: &str| self.wrong(value.span(), format!("`{name}` {what}"));
        Ok(match value.get_ref() {
            DeValue::String(s) => Value::Text(s.as_ref().to_owned()),
            DeValue::Boolean(b) => Value::Bool(*b),
            DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix())
                .map(Value::Int)
                .map_err(|_| wrong("is too large a number"))?,
            DeValue::Array(items) => {
                let texts = items.iter().map(|i| match i.get_ref() {
                    DeValue::String(s) => Ok(s.as_ref().to_owned()),
                    _ => Err(wrong("must be a list of texts in quotes")),
                });
                Value::List(texts.collect::<Result<_, _>>()?)
            }
            DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => {
                return Err(wrong("must be a text, a number, true or false, or a list of texts"));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dhow_server::Squash;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "dhow.toml").map_err(|e| e.to_string())
    }

    #[test]
    fn a_whole_file() {
        let config = parse(
            r#"
listen = ["0.0.0.0:2049", ":12049"]
state_dir = "/var/lib/dhow"
log = "debug"

[[export]]
name = "/data"
dir = "/srv/data"
access = "ro"
squash = "all"
anonuid = 1000
clients = ["192.0.2.0/24", "2001:db8::/32"]
copy.reflink = "never"

[[export]]
name = "/home"
dir = "/home"
[export.copy]
reflink = "auto"
"#,
        )
        .unwrap();
        assert_eq!(config.listen, ["0.0.0.0:2049".parse().unwrap(), "[::]:12049".parse().unwrap()]);
        assert_eq!(config.log.as_deref(), Some("debug"));
        let [data, home] = config.exports.as_slice() else { panic!("two exports") };
        assert!(data.read_only && !data.reflink && home.reflink && !home.read_only);
        assert_eq!((data.squash, data.anonuid, data.clients.len()), (Squash::All, 1000, 2));
        assert_eq!((home.squash, home.name.as_str()), (Squash::Root, "/home"));
    }

    #[test]
    fn mistakes_name_file_line_and_remedy() {
        let wrong = |text: &str| parse(text).unwrap_err();
        assert_eq!(wrong("\nlisen = \":1\"\n"), "dhow.toml:2: unknown key `lisen`; did you mean `listen`?");
        assert_eq!(
            wrong("[[export]]\nname = \"/a\"\ndir = \"/b\"\nanonuuid = 3\n"),
            "dhow.toml:4: unknown key `anonuuid`; did you mean `anonuid`?"
        );
        assert_eq!(wrong("[[export]]\nname = \"/a\"\n"), "dhow.toml:1: this export lacks `dir`");
        assert_eq!(
            wrong("[[export]]\nname = \"/a\"\ndir = \"/b\"\naccess = \"read\"\n"),
            "dhow.toml:4: `access` must be \"rw\" or \"ro\""
        );
        assert_eq!(
            wrong("[export]\nname = \"/a\"\n"),
            "dhow.toml:1: exports are written as [[export]], with two brackets"
        );
        assert_eq!(wrong("listen = 2049"), "dhow.toml:1: `listen` must be text in quotes, or a list of such");
        assert!(wrong("listen = \"nowhere\"").contains("`nowhere` is not an address; write ADDR:PORT"));
        assert!(wrong("a = \n").starts_with("dhow.toml:1: "));
        assert!(
            wrong("[[export]]\nname = \"/a\"\ndir = \"/b\"\ncopy.relink = \"auto\"\n")
                .ends_with("did you mean `copy.reflink`?")
        );
        assert!(
            Config::read(Path::new("/nonexistent/dhow.toml"))
                .unwrap_err()
                .to_string()
                .starts_with("/nonexistent/dhow.toml: cannot be read")
        );
    }

    #[test]
    fn every_key_is_documented() {
        let docs = include_str!("../../../docs/configuration.md");
        for key in keys().chain(export::KEYS.iter().map(|k| k.name)) {
            assert!(docs.contains(&format!("`{key}`")), "docs/configuration.md does not describe `{key}`");
        }
    }
}
