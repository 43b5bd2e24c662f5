//! Values of settings, whether they come from a TOML file or as text on the command line.

use crate::words;
use std::time::Duration;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text; on the command line everything is.
    Text(String),
    /// A number.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A list of texts.
    List(Vec<String>),
}

/// What is wrong with a value, to be put behind the name of the setting: `must be ...`.
pub type Wrong = String;

impl Value {
    /// Text.
    pub fn text(&self) -> Result<&str, Wrong> {
        match self {
            Self::Text(text) => Ok(text),
            _ => Err("must be text in quotes".into()),
        }
    }

    /// A truth value.
    pub fn boolean(&self) -> Result<bool, Wrong> {
        match self {
            Self::Bool(b) => Ok(*b),
            Self::Text(t) if t == "true" || t == "yes" => Ok(true),
            Self::Text(t) if t == "false" || t == "no" => Ok(false),
            _ => Err("must be true or false".into()),
        }
    }

    /// A number from `range`.
    pub fn number(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, Wrong> {
        let number = match self {
            Self::Int(n) => u64::try_from(*n).ok(),
            Self::Text(t) => t.parse().ok(),
            _ => None,
        };
        number.filter(|n| range.contains(n)).ok_or_else(|| {
            if *range.end() == u64::MAX {
                format!("must be a number of at least {}", range.start())
            } else {
                format!("must be a number from {} to {}", range.start(), range.end())
            }
        })
    }

    /// A size in bytes from `range`.
    pub fn size(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, Wrong> {
        let size = match self {
            Self::Int(n) => u64::try_from(*n).map_err(|_| "must not be negative".to_owned())?,
            Self::Text(t) => words::parse_size(t).map_err(|_| "must be a size such as 4096, \"64K\" or \"1M\"")?,
            _ => return Err("must be a size such as 4096, \"64K\" or \"1M\"".into()),
        };
        if !range.contains(&size) {
            return Err(format!("must be from {} to {}", words::bytes(*range.start()), words::bytes(*range.end())));
        }
        Ok(size)
    }

    /// A duration; a number is seconds.
    pub fn duration(&self, range: std::ops::RangeInclusive<Duration>) -> Result<Duration, Wrong> {
        let duration = match self {
            Self::Int(n) => u64::try_from(*n).ok().map(Duration::from_secs),
            Self::Text(t) => words::parse_duration(t).ok(),
            _ => None,
        };
        duration.filter(|d| range.contains(d)).ok_or_else(|| {
            format!(
                "must be a duration from {:?} to {:?}, such as 90, \"500ms\" or \"15m\"",
                range.start(),
                range.end()
            )
        })
    }

    /// One of these words.
    pub fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, Wrong> {
        let text = self.text().unwrap_or_default();
        words.iter().find(|w| w.0 == text).map(|w| w.1).ok_or_else(|| {
            let list: Vec<_> = words.iter().map(|w| format!("\"{}\"", w.0)).collect();
            format!("must be {}", list.join(" or "))
        })
    }

    /// One text or several.
    pub fn list(&self) -> Result<Vec<String>, Wrong> {
        match self {
            Self::Text(text) => Ok(vec![text.clone()]),
            Self::List(list) => Ok(list.clone()),
            _ => Err("must be text in quotes, or a list of such".into()),
        }
    }
}
