//! The services of `iwarpd` over the kernel's TCP, for comparison.

use std::net::{Ipv6Addr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::clients::{PIECE, chargen_byte, ended, many_files, use_congestion};

/// Period of the chargen pattern, bytes.
const PERIOD: u64 = 74 * 95;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Added to the ports 7, 9 and 19
    #[arg(long, default_value_t = 0)]
    port_offset: u16,
    /// Congestion control of the kernel, if not its default
    #[arg(long)]
    congestion: Option<String>,
}

#[derive(Clone, Copy)]
enum Service {
    Echo,
    Discard,
    Chargen,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn run(options: Options) -> Result<Value> {
    many_files()?;
    let ended = ended()?;
    for (port, service) in [(7, Service::Echo), (9, Service::Discard), (19, Service::Chargen)] {
        // One socket serves both families: the kernel maps IPv4 into IPv6.
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port + options.port_offset));
        let listener = TcpListener::bind(address).await.with_context(|| format!("{address}"))?;
        if let Some(congestion) = &options.congestion {
            use_congestion(&listener, congestion)?;
        }
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Errors of a connection are ignored.
                tokio::spawn(async move { drop(one(service, stream).await) });
            }
        });
    }
    println!("ready");
    ended.await;
    Ok(json!({}))
}

async fn one(service: Service, mut stream: TcpStream) -> Result<()> {
    match service {
        Service::Echo => {
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await?;
        }
        Service::Discard => {
            let mut piece = vec![0; PIECE];
            while stream.read(&mut piece).await? > 0 {}
        }
        Service::Chargen => {
            let text: Vec<u8> = (0..PERIOD * 10).map(chargen_byte).collect();
            let (mut from, mut to) = stream.split();
            let mut piece = vec![0; PIECE];
            let listen = async { while from.read(&mut piece).await.is_ok_and(|bytes| bytes > 0) {} };
            let talk = async { while to.write_all(&text).await.is_ok() {} };
            tokio::select! { () = listen => {}, () = talk => {} }
        }
    }
    stream.shutdown().await?;
    Ok(())
}
