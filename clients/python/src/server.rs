//! Regions that the program offers to peers by name.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use iwarp_verbs::{
    Access, Offer as VerbsOffer, OfferOptions, RegionServer as VerbsServer, Token, parse_prefix,
};
use iwarp_verbs::{Error, Prefix};
use pyo3::prelude::*;

use crate::device::{Device, Object as _, Rank, Slot, detach, lock};
use crate::errors::Failure;
use crate::memory::MemoryRegion;

/// Returns a token of a program.
pub(crate) fn token(token: Option<&[u8]>) -> Result<Option<Token>, Failure> {
    let Some(bytes) = token else { return Ok(None) };
    let wrong = || Failure::Value(format!("a token of {} bytes: a token has 1 to 32", bytes.len()));
    Token::new(bytes).map(Some).ok_or_else(wrong)
}

fn prefix(text: &str) -> Result<Prefix, Failure> {
    let wrong = |reason: String| Failure::Value(format!("the prefix `{text}`: {reason}"));
    let net = parse_prefix(text).map_err(|error| wrong(error.to_string()))?;
    Prefix::new(net.addr(), net.prefix_len()).ok_or_else(|| wrong("it is too long".to_owned()))
}

/// A region that is offered, and its memory, which is not collected meanwhile.
struct Offered {
    slot: Arc<Slot<Arc<VerbsOffer>>>,
    memory: Mutex<Option<Py<MemoryRegion>>>,
}

impl Offered {
    fn withdraw(&self) {
        self.slot.close();
        let memory = lock(&self.memory).take();
        drop(memory);
    }
}

/// Region service of a device. The server keeps its offers, and their memory, until they are withdrawn.
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct RegionServer {
    slot: Arc<Slot<VerbsServer>>,
    addresses: Vec<String>,
    offers: Mutex<Vec<Arc<Offered>>>,
}

impl RegionServer {
    pub(crate) fn new(device: &Arc<Device>, server: VerbsServer) -> Self {
        let addresses = server.addresses().iter().map(ToString::to_string).collect();
        let slot = Slot::new(device, "region server", Rank::Server, server);
        Self { slot, addresses, offers: Mutex::default() }
    }

    fn add(&self, offer: Result<VerbsOffer, Error>, memory: Option<Py<MemoryRegion>>) -> PyResult<Offer> {
        let offer = offer.map_err(Failure::from)?;
        let name = offer.name().to_owned();
        let slot = Slot::new(&self.slot.device, "offer", Rank::Server, Arc::new(offer));
        let offered = Arc::new(Offered { slot, memory: Mutex::new(memory) });
        let mut offers = lock(&self.offers);
        offers.retain(|offer| offer.slot.get().is_ok());
        offers.push(Arc::clone(&offered));
        Ok(Offer { offered, name })
    }
}

fn options(access: u32, token: Option<&[u8]>, allow: &[String]) -> Result<OfferOptions, Failure> {
    let allow = allow.iter().map(|text| prefix(text)).collect::<Result<_, _>>()?;
    Ok(OfferOptions { access: crate::memory::access(access)?, token: self::token(token)?, allow })
}

#[pymethods]
impl RegionServer {
    /// Addresses that peers connect to, with the ports that the kernel has selected.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Offers all of a memory region under a name.
    #[pyo3(signature = (name, mr, access, token = None, allow = vec![]))]
    fn offer(
        &self,
        name: &str,
        mr: &Bound<'_, MemoryRegion>,
        access: u32,
        token: Option<&[u8]>,
        allow: Vec<String>,
    ) -> PyResult<Offer> {
        let (server, options) = (self.slot.get()?, options(access, token, &allow)?);
        let offer = mr.get().with(|mr| Ok(server.offer(name, mr, &options)))?;
        self.add(offer, Some(mr.clone().unbind()))
    }

    /// Offers a file under a name, with its present length: peers read the file, and write it if they may.
    #[pyo3(signature = (name, path, access, token = None, allow = vec![]))]
    fn offer_file(
        &self,
        name: &str,
        path: PathBuf,
        access: u32,
        token: Option<&[u8]>,
        allow: Vec<String>,
    ) -> PyResult<Offer> {
        let (server, options) = (self.slot.get()?, options(access, token, &allow)?);
        let writes = options.access.contains(Access::REMOTE_WRITE);
        let file = OpenOptions::new().read(true).write(writes).open(&path);
        let file = file.map_err(|cause| Error::System { call: "open", cause }).map_err(Failure::from)?;
        self.add(server.offer_file(name, file, &options), None)
    }

    /// Withdraws all regions, and ends the connections of peers.
    fn close(&self, py: Python<'_>) {
        if self.slot.device.is_child() {
            return;
        }
        detach(py, || {
            let offers = std::mem::take(&mut *lock(&self.offers));
            offers.iter().for_each(|offer| offer.withdraw());
            self.slot.close();
        });
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

/// A region that peers reach by its name until it is withdrawn, or its memory region is closed.
#[pyclass(frozen, weakref, module = "ironwarp")]
pub(crate) struct Offer {
    offered: Arc<Offered>,
    name: String,
}

#[pymethods]
impl Offer {
    /// Name that peers ask for.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Counters: grants, bytes that peers have written, bytes that they have read.
    fn stats(&self) -> PyResult<(u64, u64, u64)> {
        let stats =
            self.offered.slot.get()?.stats().ok_or_else(|| Failure::closed("memory region of the offer"))?;
        Ok((stats.grants, stats.bytes_placed, stats.bytes_fetched))
    }

    /// Withdraws the region, and revokes the grants of peers.
    fn withdraw(&self, py: Python<'_>) {
        if !self.offered.slot.device.is_child() {
            detach(py, || self.offered.withdraw());
        }
    }
}
