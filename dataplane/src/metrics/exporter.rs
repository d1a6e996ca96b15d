//! HTTP server of the exporter. One request per connection, and few connections at a time.

use std::cell::{Cell, OnceCell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use iwarp_config::MetricsAddress;
use iwarp_control::socket::{SocketFile, group_id, listen};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, timeout};

use super::family::{Family, plain, text};
use crate::control::Relays;

/// Path of the only resource.
const PATH: &str = "/metrics";

/// Format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// OpenMetrics 1.0, for clients that name it, as Prometheus does.
    OpenMetrics,
    /// Text format of Prometheus, for all others: `promtool check metrics` and scripts read it.
    Plain,
}

impl Format {
    /// Returns the media type.
    fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        })
    }

    /// Selects the format that the client accepts (RFC 9110 §12.5.1): OpenMetrics only if the client names version
    /// 1.0.0, or no version, with at least the weight of the text format.
    fn accepted(headers: &HeaderMap) -> Self {
        let fields = headers.get_all(ACCEPT).into_iter().filter_map(|field| field.to_str().ok());
        let (mut open_metrics, mut plain) = (0.0, 0.0);
        for range in fields.flat_map(|field| field.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters = parts.filter_map(|part| part.split_once('='));
            let (mut weight, mut version) = (1.0_f32, "1.0.0");
            for (name, value) in parameters.map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
            {
                match name.to_ascii_lowercase().as_str() {
                    "q" => weight = value.parse().unwrap_or(0.0),
                    "version" => version = value,
                    _ => {}
                }
            }
            match kind.as_str() {
                "application/openmetrics-text" if version == "1.0.0" => {
                    open_metrics = weight.max(open_metrics);
                }
                "text/plain" => plain = weight.max(plain),
                _ => {}
            }
        }
        if open_metrics > 0.0 && open_metrics >= plain { Self::OpenMetrics } else { Self::Plain }
    }
}

/// Longest head of a request, bytes; the least that `hyper` accepts.
const HEAD_BYTES_MAX: usize = 8192;

/// Most header fields of a request.
const HEADERS_MAX: usize = 64;

/// Age at which the text is composed again. Requests in between receive the same text.
const TEXT_AGE_MAX: Duration = Duration::from_millis(100);

/// Pause after a refused client or a failed accept, so that refusals take a bounded share of the thread.
const REFUSAL_REST: Duration = Duration::from_millis(10);

iwarp_counters::counters! {
    /// Counters of the exporter.
    pub struct MetricsStats {
        /// Requests for metrics that were answered.
        scrapes,
        /// Clients refused: as many as configured were connected.
        refused_too_many,
        /// Requests refused: not a GET or HEAD of /metrics.
        refused_request,
        /// Clients disconnected: the request was not complete, or the reply not read, within the time limit.
        closed_slow,
        /// Clients disconnected: not HTTP, a head that is too long, or a broken connection.
        closed_error,
        /// Connections that could not be accepted.
        accept_errors,
    }
}

/// The counters, shared with the handler of the control socket on the same thread.
#[derive(Clone, Debug, Default)]
pub struct SharedMetricsStats(Rc<Cell<MetricsStats>>);

impl SharedMetricsStats {
    /// Returns the current counters.
    pub fn read(&self) -> MetricsStats {
        self.0.get()
    }

    fn count(&self, counter: impl FnOnce(&mut MetricsStats) -> &mut u64) {
        let mut stats = self.0.get();
        let counter = counter(&mut stats);
        *counter = counter.wrapping_add(1);
        self.0.set(stats);
    }
}

/// Supplier of the values.
pub trait Source {
    /// Returns the values of this moment.
    fn families(&self) -> impl Future<Output = Vec<Family>>;
}

#[derive(Debug)]
enum Listener {
    Tcp(std::net::TcpListener),
    /// The file is removed when the exporter is dropped.
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

/// The exporter, which listens at its address.
#[derive(Debug)]
pub struct Exporter {
    listener: Listener,
    clients_max: usize,
    time_limit: Duration,
    stats: SharedMetricsStats,
}

impl Exporter {
    /// Listens on the configured address.
    ///
    /// # Errors
    /// The address is in use or does not exist, or the system refuses.
    pub fn bind(config: &iwarp_config::Metrics) -> Result<Self> {
        let listener = match &config.listen {
            MetricsAddress::Tcp(address) => {
                let refused = || format!("metrics.listen: cannot listen on {address}");
                let listener = std::net::TcpListener::bind(address).with_context(refused)?;
                listener.set_nonblocking(true).with_context(refused)?;
                Listener::Tcp(listener)
            }
            MetricsAddress::Unix(path) => {
                let gid = config.group.as_deref().map(group_id).transpose().context("metrics.group")?;
                let gid = gid.unwrap_or_else(|| rustix::process::getegid().as_raw());
                let (listener, file) = listen(path, config.mode, Some(gid), "metrics.listen")?;
                Listener::Unix(listener, file)
            }
        };
        Ok(Self {
            listener,
            clients_max: config.clients_max.into(),
            time_limit: Duration::from_millis(config.timeout_ms.into()),
            stats: SharedMetricsStats::default(),
        })
    }

    /// Returns the counters, which stay readable while the exporter runs.
    pub fn stats(&self) -> SharedMetricsStats {
        self.stats.clone()
    }

    /// Serves until the future is dropped. Must run on a current-thread runtime with I/O and time.
    ///
    /// # Errors
    /// The runtime cannot register the listener.
    pub async fn run<S: Source + 'static>(self, source: Rc<S>) -> io::Result<Infallible> {
        let Self { listener, clients_max, time_limit, stats } = self;
        let page = Rc::new(Page { source, latest: RefCell::new(None) });
        // A refused client has a relay until it has seen that.
        let listener = AsyncListener::new(listener, clients_max.saturating_mul(2), time_limit)?;
        let mut clients = JoinSet::new();
        let serve = async {
            loop {
                let accepted = tokio::select! {
                    Some(_) = clients.join_next() => continue,
                    accepted = listener.accept() => accepted,
                };
                match accepted {
                    Ok(stream) if clients.len() < clients_max => {
                        let (page, stats) = (Rc::clone(&page), stats.clone());
                        clients.spawn_local(async move {
                            match timeout(time_limit, serve_one(stream, &page, &stats)).await {
                                Ok(Ok(())) => {}
                                Ok(Err(_)) => stats.count(|s| &mut s.closed_error),
                                Err(_) => stats.count(|s| &mut s.closed_slow),
                            }
                        });
                    }
                    Ok(_) => {
                        stats.count(|s| &mut s.refused_too_many);
                        tokio::time::sleep(REFUSAL_REST).await;
                    }
                    Err(_) => {
                        stats.count(|s| &mut s.accept_errors);
                        tokio::time::sleep(REFUSAL_REST).await;
                    }
                }
            }
        };
        LocalSet::new().run_until(serve).await
    }
}

/// The text that is served.
struct Page<S> {
    source: Rc<S>,
    latest: RefCell<Option<(Instant, Rc<Texts>)>>,
}

/// The text of one moment in both formats, the second once it is asked for.
struct Texts {
    open_metrics: String,
    plain: OnceCell<String>,
}

impl<S: Source> Page<S> {
    async fn text(&self, format: Format) -> String {
        let texts = self.texts().await;
        match format {
            Format::OpenMetrics => texts.open_metrics.clone(),
            Format::Plain => texts.plain.get_or_init(|| plain(&texts.open_metrics)).clone(),
        }
    }

    async fn texts(&self) -> Rc<Texts> {
        let fresh = self.latest.borrow().clone().filter(|(at, _)| at.elapsed() < TEXT_AGE_MAX);
        if let Some((_, texts)) = fresh {
            return texts;
        }
        let open_metrics = text(self.source.families().await).unwrap_or_default();
        let texts = Rc::new(Texts { open_metrics, plain: OnceCell::new() });
        *self.latest.borrow_mut() = Some((Instant::now(), Rc::clone(&texts)));
        texts
    }
}

/// Serves the one request of a client.
async fn serve_one<S: Source>(
    stream: Box<dyn Stream>,
    page: &Page<S>,
    stats: &SharedMetricsStats,
) -> hyper::Result<()> {
    let service =
        service_fn(|request| async move { Ok::<_, Infallible>(reply(&request, page, stats).await) });
    http1::Builder::new()
        .keep_alive(false)
        .half_close(true)
        // The time limit of the connection holds for the head, too.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn reply<B, S: Source>(
    request: &Request<B>,
    page: &Page<S>,
    stats: &SharedMetricsStats,
) -> Response<String> {
    let refused = |status, message: &str| {
        stats.count(|s| &mut s.refused_request);
        let mut response = Response::new(format!("{message}\n"));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != PATH {
        return refused(StatusCode::NOT_FOUND, "iwarpd serves /metrics and nothing else");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let format = Format::accepted(request.headers());
    let mut response = Response::new(page.text(format).await);
    response.headers_mut().insert(CONTENT_TYPE, format.media_type());
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    stats.count(|s| &mut s.scrapes);
    response
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

enum AsyncListener {
    Tcp(TcpListener),
    Unix(Relayed),
}

/// A Unix socket, whose clients may send descriptors whose close blocks.
struct Relayed {
    /// Closed by a thread, with the sockets that nobody has accepted; `None` from then on.
    listener: Option<UnixListener>,
    _file: SocketFile,
    relays: Relays,
    relays_max: usize,
    time_limit: Duration,
}

impl Drop for Relayed {
    fn drop(&mut self) {
        if let Some(Ok(listener)) = self.listener.take().map(UnixListener::into_std) {
            // If there is no thread, it is closed here.
            let _ = std::thread::Builder::new().name("closer".to_owned()).spawn(move || drop(listener));
        }
    }
}

impl AsyncListener {
    fn new(listener: Listener, relays_max: usize, time_limit: Duration) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?),
            Listener::Unix(listener, file) => Self::Unix(Relayed {
                listener: Some(UnixListener::from_std(listener)?),
                _file: file,
                relays: Relays::default(),
                relays_max,
                time_limit,
            }),
        })
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(Relayed { listener, relays, relays_max, time_limit, .. }) => {
                let listener = listener.as_ref().ok_or(io::ErrorKind::NotConnected)?;
                let (client, _) = listener.accept().await?;
                Box::new(relays.start(client, *relays_max, *time_limit)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_selects_the_format() {
        use Format::{OpenMetrics, Plain};
        // Prometheus 2 and 3, curl, a browser, and others.
        for (accept, format) in [
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.2",
                OpenMetrics,
            ),
            ("Application/OpenMetrics-Text", OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\"; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Plain),
            ("application/openmetrics-text;version=1.0.0;q=0", Plain),
            ("application/openmetrics-text;q=0.4, text/plain;version=0.0.4;q=0.9", Plain),
            ("text/plain", Plain),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", Plain),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Plain),
            ("*/*", Plain),
            (";;=,,q=", Plain),
            ("application/openmetrics-text;q=x", Plain),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
            assert_eq!(Format::accepted(&headers), format, "{accept}");
        }
        assert_eq!(Format::accepted(&HeaderMap::new()), Plain);
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_static("text/plain;q=0.5"));
        headers.append(ACCEPT, HeaderValue::from_static("application/openmetrics-text"));
        assert_eq!(Format::accepted(&headers), OpenMetrics);
    }
}
