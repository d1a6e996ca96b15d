//! The methods of the control socket, which `iwarpctl nfs` calls.

use iwarp_server::control::{Answer, Methods, answer};
use iwarp_server::iwarp_control::nfs::{
    ClientsMethod, ExportsMethod, METHODS, ReloadMethod, Reloaded, StatsMethod, StatusMethod,
};
use iwarp_server::iwarp_control::{ErrorKind, ErrorObject, Method, Request};

use crate::running::Running;

impl Methods for Running {
    const NAMES: &'static [&'static str] = METHODS;

    fn answer(&self, request: Request) -> Result<Answer, Request> {
        Ok(match request.method.as_str() {
            StatusMethod::NAME => answer::<StatusMethod>(request, || Ok(self.status())),
            ExportsMethod::NAME => answer::<ExportsMethod>(request, || Ok(self.server.exports_report())),
            ClientsMethod::NAME => answer::<ClientsMethod>(request, || Ok(self.server.clients_report())),
            StatsMethod::NAME => answer::<StatsMethod>(request, || Ok(self.server.stats_report())),
            ReloadMethod::NAME => answer::<ReloadMethod>(request, || {
                let loaded = self.reload().map(|exports| Reloaded { exports: exports as u64 });
                loaded.map_err(|error| {
                    let message = format!("the exports stay as they are: {error:#}");
                    ErrorObject::new(ErrorKind::InvalidParams, message).with_help(
                        "correct the file, check it with `iwarp-nfsd --check --machine`, and reload again",
                    )
                })
            }),
            _ => return Err(request),
        })
    }
}
