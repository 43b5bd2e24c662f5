//! The bare loops that `dhow bench cpu` compares with: a file read and sent, a stream received and written, one
//! mebibyte at a time through one page-aligned buffer, with no protocol at all.

use crate::cli::Bare;
use crate::exit::{Failure, Outcome};
use crate::output::say;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpListener;

const PIECE: usize = 1 << 20;

/// Runs the command: serves connections one after the other until it is told to stop.
pub fn run(args: &Bare) -> Outcome {
    serve(args).map_err(|e| Failure::failed(format!("{}: {e}", args.file.display())))
}

fn serve(args: &Bare) -> io::Result<()> {
    let file = File::options().read(true).write(args.receive).create(args.receive).truncate(false).open(&args.file)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(format!("ready: listening on {}", listener.local_addr()?));
    let mut buf = dhow_sys::pool::AlignedPool::new(PIECE).take(PIECE);
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        let mut offset = 0;
        if args.receive {
            // A new file each time, as the one written through NFS is.
            file.set_len(0)?;
            loop {
                let mut filled = 0;
                while let Some(rest) = buf.get_mut(filled..).filter(|r| !r.is_empty()) {
                    match stream.read(rest)? {
                        0 => break,
                        n => filled += n,
                    }
                }
                if filled == 0 {
                    break;
                }
                let mut written = 0;
                while let Some(rest) = buf.get(written..filled).filter(|r| !r.is_empty()) {
                    written += dhow_sys::io::pwrite(&file, rest, offset % args.span + written as u64)?;
                }
                offset += filled as u64;
            }
        } else {
            while offset < args.total {
                let n = dhow_sys::io::pread(&file, &mut buf, offset % args.span)?;
                let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else { break };
                stream.write_all(part)?;
                offset += n as u64;
            }
        }
    }
    Ok(())
}
