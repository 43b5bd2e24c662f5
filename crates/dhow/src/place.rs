//! What the arguments of commands name: local paths and URLs.

use crate::exit::{Failure, Outcome};
use dhow_client::NfsUrl;
use dhow_copy::{Endpoint, Local, NfsEndpoint};
use futures_util::future::join_all;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A path on an endpoint.
#[derive(Clone)]
pub struct Place {
    /// Where it is.
    pub endpoint: Arc<dyn Endpoint>,
    /// The path there.
    pub path: PathBuf,
    /// It was written with a slash at its end, or a `.`: a directory is meant.
    pub is_dir: bool,
    /// It has no name of its own (`/`, `dir/.`, `..`): the content of the directory is meant.
    pub is_content: bool,
}

impl Place {
    /// `written`: the path before anything made it simpler.
    fn new(endpoint: Arc<dyn Endpoint>, path: PathBuf, written: &[u8]) -> Self {
        let last = written.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let dots = last == b"." || last == b"..";
        Self { endpoint, is_dir: last.is_empty() || dots, is_content: dots || path.file_name().is_none(), path }
    }

    /// As the user would write it.
    pub fn shown(&self) -> String {
        self.endpoint.shown(&self.path)
    }
}

/// All endpoints of one run: one client for each server, however many URLs name it.
pub struct Places {
    local: Arc<dyn Endpoint>,
    servers: Vec<(String, Arc<NfsEndpoint>)>,
}

impl Places {
    /// Does `work` and ends the sessions that it began, however it went.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn with<T>(work: impl AsyncFnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        let mut places = Self { local: Arc::new(Local::new()), servers: Vec::new() };
        let done = work(&mut places).await;
        places.close().await;
        done
    }

    /// Connects to all the servers that arguments name, at the same time, so that the way to each is waited for once.
    ///
    /// # Errors
    /// That of the first that cannot be reached, or of the first URL that is none.
    pub async fn connect(&mut self, arguments: impl IntoIterator<Item = &OsString>) -> Outcome {
        let mut new: Vec<NfsUrl> = Vec::new();
        for argument in arguments {
            if argument.to_str().is_some_and(NfsUrl::is_url) {
                let url = parse_url(argument)?;
                let key = url.authority();
                if !self.servers.iter().any(|s| s.0 == key) && !new.iter().any(|u| u.authority() == key) {
                    new.push(url);
                }
            }
        }
        let connected = join_all(new.iter().map(NfsEndpoint::connect)).await;
        let mut failed = None;
        for (url, done) in new.iter().zip(connected) {
            match done {
                Ok(endpoint) => drop(self.add(url.authority(), endpoint).await),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(()), |e| Err(e.into()))
    }

    /// Takes up a connection. One server under two names is one server: copies between them stay inside it.
    async fn add(&mut self, key: String, new: NfsEndpoint) -> Arc<NfsEndpoint> {
        let known = self.servers.iter().find(|s| s.1.same_server(&new)).map(|s| s.1.clone());
        let endpoint = match known {
            Some(known) => {
                new.close().await;
                known
            }
            None => Arc::new(new),
        };
        self.servers.push((key, endpoint.clone()));
        endpoint
    }

    /// The place that an argument names, a URL or a local path; connects to the server when it is the first time.
    ///
    /// # Errors
    /// A URL that is none; a server that cannot be reached.
    pub async fn get(&mut self, argument: &OsStr) -> Outcome<Place> {
        let is_url = argument.to_str().is_some_and(NfsUrl::is_url);
        if is_url {
            return self.url(argument).await;
        }
        let bytes = argument.as_bytes();
        if bytes.is_empty() {
            return Err(Failure::usage("an empty path names nothing"));
        }
        Ok(Place::new(self.local.clone(), argument.into(), bytes))
    }

    /// The place that a URL names; a local path is refused.
    ///
    /// # Errors
    /// As [`Places::get`].
    pub async fn url(&mut self, argument: &OsStr) -> Outcome<Place> {
        let (place, endpoint) = self.server(argument).await?;
        drop(endpoint);
        Ok(place)
    }

    /// As [`Places::url`], with the endpoint as what it is.
    ///
    /// # Errors
    /// As [`Places::get`].
    pub async fn server(&mut self, argument: &OsStr) -> Outcome<(Place, Arc<NfsEndpoint>)> {
        let url = parse_url(argument)?;
        let key = url.authority();
        let endpoint = match self.servers.iter().find(|s| s.0 == key) {
            Some((_, endpoint)) => endpoint.clone(),
            None => {
                let new = NfsEndpoint::connect(&url).await?;
                self.add(key, new).await
            }
        };
        let path = PathBuf::from(OsStr::from_bytes(url.path()));
        let place = Place::new(endpoint.clone(), path, url.path());
        Ok((place, endpoint))
    }

    async fn close(self) {
        let mut servers: Vec<Arc<NfsEndpoint>> = Vec::new();
        for (_, server) in self.servers {
            if !servers.iter().any(|s| Arc::ptr_eq(s, &server)) {
                servers.push(server);
            }
        }
        join_all(servers.iter().map(|server| server.close())).await;
    }
}

/// Insists that all of `arguments` are URLs, before anything is done to one of them.
///
/// # Errors
/// As [`parse_url`].
pub fn check_urls(arguments: &[OsString]) -> Outcome {
    arguments.iter().try_for_each(|a| parse_url(a).map(drop))
}

/// Reads a URL.
///
/// # Errors
/// One line with the remedy.
pub fn parse_url(argument: &OsStr) -> Outcome<NfsUrl> {
    let text = argument.to_string_lossy();
    if !NfsUrl::is_url(&text) {
        return Err(Failure::usage(format!("`{text}` is not a URL; write nfs://HOST[:PORT]/PATH")));
    }
    let Some(text) = argument.to_str() else {
        return Err(Failure::usage(format!("`{text}`: write bytes that are not UTF-8 as %XX in a URL")));
    };
    text.parse::<NfsUrl>().map_err(|e| Failure::usage(format!("`{text}`: {e}")))
}
