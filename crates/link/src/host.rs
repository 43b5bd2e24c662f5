//! Hosts: a namespace each, kept by a thread.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use dhow_sys::netns;

use crate::topology::{CONGESTION, DEFAULT_CONGESTION, NO_IPV6};
use crate::{Error, Result};

/// Packets that an interface holds for the mover before it drops: enough for the mover to be late.
const QUEUE: u32 = 10_000;

/// An interface to be made.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// Hosts to be reached through it.
    pub(crate) routes: Vec<Ipv4Addr>,
}

/// What a host is to be.
#[derive(Clone, Debug)]
pub(crate) struct HostPlan {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) sysctls: Vec<(String, String)>,
    pub(crate) offload: bool,
}

/// A way into the namespace of a host, for threads that outlive the borrow of a [`crate::Net`]. The namespace lives as
/// long as one of these; its links end with the [`crate::Net`].
#[derive(Clone, Debug)]
pub struct Namespace {
    fd: Arc<OwnedFd>,
    inode: u64,
}

impl Namespace {
    /// Moves the calling thread into the namespace for good; threads and processes that it starts are in it too.
    /// Sockets made before stay where they were.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] when the thread has lost the right to.
    pub fn enter(&self) -> Result<()> {
        netns::enter_net(&*self.fd).map_err(Error::setup("entering a network namespace"))
    }

    /// The number of the namespace: what `/proc/<pid>/ns/net` shows in `net:[N]`.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Starts a thread in the namespace.
    ///
    /// # Errors
    /// [`Error::Io`] when no thread can be made; the thread's result is an error when it could not enter.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let namespace = self.clone();
        let body = move || namespace.enter().map(|()| f());
        thread::Builder::new().name(name.to_owned()).spawn(body).map_err(Error::io("starting a thread"))
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A host: its namespace, and the thread that keeps it and starts its processes.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) namespace: Namespace,
    /// In the order of the plan's interfaces.
    pub(crate) tuns: Vec<Arc<OwnedFd>>,
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Makes the namespace and everything in it.
    pub(crate) fn start(plan: HostPlan) -> Result<Keeper> {
        let (jobs, inbox) = mpsc::sync_channel::<Job>(1);
        let (ready, made) = mpsc::sync_channel(1);
        let (name, address) = (plan.name.clone(), plan.address);
        let body = move || {
            let outcome = set_up(&plan);
            let fine = outcome.is_ok();
            if ready.send(outcome).is_ok() && fine {
                // The thread must live on: the processes it starts die when it ends.
                inbox.iter().for_each(|job| job());
            }
        };
        let thread =
            thread::Builder::new().name(format!("link-{name}")).spawn(body).map_err(Error::io("starting a thread"))?;
        match made.recv().map_err(|_| Error::Stopped).flatten() {
            Ok((namespace, tuns)) => {
                Ok(Keeper { name, address, namespace, tuns, jobs: Some(jobs), thread: Some(thread) })
            }
            Err(error) => {
                drop(thread.join());
                Err(error)
            }
        }
    }

    /// Runs `f` on the keeper's own thread.
    pub(crate) fn ask<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (answer, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            // Nobody waits any longer: nothing to do.
            let _ = answer.send(f());
        });
        self.jobs.as_ref().ok_or(Error::Stopped)?.send(job).map_err(|_| Error::Stopped)?;
        result.recv().map_err(|_| Error::Stopped)
    }

    pub(crate) fn spawn(&self, mut command: Command) -> Result<Child> {
        let start = move || netns::die_with_spawning_thread(&mut command).spawn();
        self.ask(start)?.map_err(Error::io("starting a process on an emulated host"))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of a job has been told to its asker by the missing answer.
            drop(thread.join());
        }
    }
}

type Made = (Namespace, Vec<Arc<OwnedFd>>);

/// Moves the calling thread into a new namespace and furnishes it.
fn set_up(plan: &HostPlan) -> Result<Made> {
    netns::unshare_net().map_err(Error::setup("making a network namespace"))?;
    let fd = netns::current_net().map_err(Error::setup("opening a network namespace"))?;
    let inode = netns::net_inode(&fd).map_err(Error::setup("opening a network namespace"))?;
    for (name, value) in &plan.sysctls {
        match std::fs::write(format!("/proc/sys/{name}"), value) {
            Ok(()) => {}
            // Kernels without IPv6 do without; and what is only the default here may be missing.
            Err(_) if [NO_IPV6, (CONGESTION, DEFAULT_CONGESTION)].contains(&(name.as_str(), value.as_str())) => {}
            Err(error) => {
                let error = std::io::Error::new(error.kind(), format!("{} = {value}: {error}", name.replace('/', ".")));
                return Err(Error::Io { what: "setting a kernel parameter of a host", error });
            }
        }
    }
    netns::set_up("lo").map_err(Error::setup("bringing up lo"))?;
    let tuns = plan.interfaces.iter().map(|interface| make(interface, plan)).collect::<Result<_>>()?;
    Ok((Namespace { fd: Arc::new(fd), inode }, tuns))
}

fn make(interface: &Interface, plan: &HostPlan) -> Result<Arc<OwnedFd>> {
    let name = interface.name.as_str();
    let tun = netns::open_tun(name, true).map_err(Error::setup("making a TUN interface"))?;
    netns::set_tun_offload(&tun, plan.offload).map_err(Error::setup("setting up a TUN interface"))?;
    let furnish = || {
        netns::set_mtu(name, interface.mtu)?;
        netns::set_queue_length(name, QUEUE)?;
        netns::set_address(name, plan.address, 32)?;
        netns::set_up(name)?;
        interface.routes.iter().try_for_each(|to| netns::add_route(*to, 32, name))
    };
    furnish().map_err(Error::setup("setting up a TUN interface"))?;
    Ok(Arc::new(tun))
}
