//! `dhow admin`: looks at a running server and gives it orders, over the socket in its state directory.
//!
//! `socket` is the server's side and the transport, `orders` what they mean, here is what the user types and reads.

pub mod orders;
pub mod socket;

use crate::cli::{Admin, Order};
use crate::config::Config;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{say, say_json};
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;

/// Runs the command.
pub async fn run(args: Admin) -> Outcome {
    let state = state_dir(&args)?;
    let server = Server { state };
    match args.order {
        Order::Status => {
            let status = server.ask(json!({ "order": "status" })).await?;
            show(&status, args.json, print_status);
        }
        Order::Clients => server.list("clients", json!({}), args.json, print_client).await?,
        Order::State { client, file } => {
            server.list("state", json!({ "client": client, "file": file }), args.json, print_state).await?;
        }
        Order::Copies => server.list("copies", json!({}), args.json, print_copy).await?,
        Order::Expire { client } => {
            let done = server.ask(json!({ "order": "expire", "client": client })).await?;
            show(&done, args.json, |_| say(format!("{client} is ended")));
        }
        Order::Revoke { stateids, file, client } => {
            let mut revoked = 0;
            let orders: Vec<Value> = match &file {
                Some(file) => vec![json!({ "order": "revoke", "file": file, "client": client })],
                None => stateids.iter().map(|s| json!({ "order": "revoke", "stateid": s })).collect(),
            };
            for order in orders {
                let done = server.ask(order).await?;
                revoked += done.get("revoked").and_then(Value::as_u64).unwrap_or(0);
            }
            show(&json!({ "revoked": revoked }), args.json, |_| say(format!("{revoked} revoked")));
        }
        Order::EndGrace => {
            let done = server.ask(json!({ "order": "end-grace" })).await?;
            show(&done, args.json, |_| say("the grace period is over"));
        }
        Order::Counters { reset } => {
            let counters = server.ask(json!({ "order": "counters", "reset": reset })).await?;
            show(&counters, args.json, print_counters);
        }
        Order::CancelCopy { stateid } => {
            let done = server.ask(json!({ "order": "cancel-copy", "stateid": stateid })).await?;
            show(&done, args.json, |_| say(format!("{stateid} is cancelled")));
        }
        Order::Reload => {
            let done = server.ask(json!({ "order": "reload" })).await?;
            show(&done, args.json, |done| say(text(done, "told")));
        }
    }
    Ok(())
}

/// Where the server's state directory is: as named, as its configuration has it, or the default of its port.
fn state_dir(args: &Admin) -> Outcome<PathBuf> {
    if let Some(dir) = &args.state_dir {
        return Ok(dir.clone());
    }
    let config = match &args.config {
        Some(path) => Config::read(path).map_err(Failure::usage)?,
        None => Config::default(),
    };
    if let Some(dir) = config.state_dir {
        return Ok(dir);
    }
    let listens = config.listen.iter().map(std::net::SocketAddr::port).find(|p| *p != 0);
    let port = args.port.or(listens).unwrap_or(crate::serve::PORT);
    crate::serve::default_state_dir(port).map_err(Failure::failed)
}

struct Server {
    state: PathBuf,
}

impl Server {
    /// Gives one order.
    async fn ask(&self, order: Value) -> Outcome<Value> {
        let answer = socket::give(&self.state, &order).await.map_err(|e| {
            let dir = self.state.display();
            let message = match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    format!("no server runs with the state directory {dir}; name its own with --state-dir or --port")
                }
                io::ErrorKind::PermissionDenied => {
                    format!("{dir}: permission denied; orders are given by root, or by the user who runs the server")
                }
                _ => format!("{dir}: {e}"),
            };
            Failure { code: Code::Unreachable, message }
        })?;
        if let Some(why) = answer.get("error").and_then(Value::as_str) {
            return Err(Failure::failed(why));
        }
        Ok(answer.get("ok").cloned().unwrap_or_default())
    }

    /// A list, page by page.
    async fn list(&self, name: &str, mut order: Value, as_json: bool, print: fn(&Value)) -> Outcome {
        let mut all = Vec::new();
        loop {
            if let Value::Object(order) = &mut order {
                order.insert("order".into(), json!(name));
            }
            let page = self.ask(order.clone()).await?;
            let items = page.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
            let key = if name == "clients" { "client" } else { "stateid" };
            let last = items.last().and_then(|item| item.get(key)).cloned();
            if as_json {
                all.extend(items);
            } else {
                items.iter().for_each(print);
            }
            match last.filter(|_| page.get("more").and_then(Value::as_bool) == Some(true)) {
                Some(last) => {
                    if let Value::Object(order) = &mut order {
                        order.insert("after".into(), last);
                    }
                }
                None => break,
            }
        }
        if as_json {
            say_json(&json!({ name: all }));
        }
        Ok(())
    }
}

fn show(value: &Value, as_json: bool, print: impl FnOnce(&Value)) {
    if as_json { say_json(value) } else { print(value) }
}

/// A field as people read it.
fn text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        Some(Value::Null) | None => "-".into(),
        Some(other) => other.to_string(),
    }
}

/// Fields as `name=value`.
fn fields(value: &Value, keys: &[&str]) -> String {
    keys.iter().map(|key| format!("{key}={}", text(value, key))).collect::<Vec<_>>().join(" ")
}

fn print_status(status: &Value) {
    say(format!("dhow {}, process {}, up {} s", text(status, "version"), text(status, "pid"), text(status, "seconds")));
    for export in status.get("exports").and_then(Value::as_array).into_iter().flatten() {
        say(format!("export {} {}", text(export, "name"), text(export, "access")));
    }
    let keys = ["grace", "connections", "clients", "sessions", "opens", "lock_states", "delegations", "copies"];
    say(fields(status, &keys));
}

fn print_client(client: &Value) {
    let keys = ["lease_age_seconds", "sessions", "opens", "locks", "delegations", "copies", "revoked"];
    say(format!(
        "{} {} {} [{}] {}",
        text(client, "client"),
        text(client, "state"),
        text(client, "name"),
        text(client, "addresses"),
        fields(client, &keys)
    ));
}

fn print_state(state: &Value) {
    let file = match state.get("file") {
        Some(Value::String(name)) => name.clone(),
        _ => format!("in {}", text(state, "export")),
    };
    let more = match state.get("kind").and_then(Value::as_str) {
        Some("open") => fields(state, &["access", "deny", "user", "lock_owners"]),
        Some("lock") => {
            let ranges = state.get("ranges").and_then(Value::as_array).into_iter().flatten();
            let range = |r: &Value| format!("{}:{}-{}", text(r, "kind"), text(r, "first"), text(r, "last"));
            format!("count={} {}", text(state, "count"), ranges.map(range).collect::<Vec<_>>().join(" "))
        }
        _ => fields(state, &["access", "recalled"]),
    };
    say(format!("{} {} {} {file} {more}", text(state, "stateid"), text(state, "kind"), text(state, "client")));
}

fn print_copy(copy: &Value) {
    let (stateid, client) = (text(copy, "stateid"), text(copy, "client"));
    say(format!("{stateid} {} {client} bytes={}", text(copy, "state"), text(copy, "bytes")));
}

fn print_counters(counters: &Value) {
    say(format!("in {} s:", text(counters, "seconds")));
    for (name, value) in counters.get("counters").and_then(Value::as_object).into_iter().flatten() {
        say(format!("{name} {value}"));
    }
}
