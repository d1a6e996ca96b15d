//! The systemd journal as the log's destination: entries with fields (`format = "journald"`), or the lines of stderr
//! if the service manager has connected stderr to it.
//!
//! The journal takes the number in front of a line for its priority, and has a time of its own (sd-daemon(3)).

use std::fmt;
use std::os::fd::AsFd;
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use tracing::{Event, Level, Subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// True if stderr is connected to the journal.
pub(super) static IS_STDERR: LazyLock<bool> =
    LazyLock::new(|| is_named(std::io::stderr(), std::env::var("JOURNAL_STREAM").ok().as_deref()));

/// Returns true if `stream` is the one that JOURNAL_STREAM names by device and inode: a program whose stderr was
/// redirected since has the variable, too.
fn is_named(stream: impl AsFd, variable: Option<&str>) -> bool {
    let named = variable.and_then(|text| text.split_once(':'));
    let named = named.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    rustix::fs::fstat(stream).is_ok_and(|stat| named == Some((stat.st_dev, stat.st_ino)))
}

/// Returns text whose every line has the priority of `level`: the journal makes an entry of each line.
pub(super) fn with_priority(level: Level, text: &str) -> String {
    let priority = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    text.split_inclusive('\n').fold(String::new(), |all, line| format!("{all}<{priority}>{line}"))
}

/// The lines of another format, with the priority of their events.
#[derive(Debug)]
pub(super) struct Prioritized<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for Prioritized<F>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        writer.write_str(&with_priority(*event.metadata().level(), &text))
    }
}

/// Connects to the systemd journal. Fields of a line are journal fields with the prefix `IWARP_`.
pub(super) fn entries() -> Result<tracing_journald::Layer> {
    let layer = tracing_journald::layer().context(
        "log.format = \"journald\": there is no journal to write to; `format = \"text\"` in [log] writes to stderr",
    )?;
    // The crate's own mapping has `info` as "notice", and `debug` as "informational".
    let priorities =
        PriorityMappings { info: Priority::Informational, debug: Priority::Debug, ..PriorityMappings::new() };
    let layer = layer.with_priority_mappings(priorities);
    Ok(layer.with_field_prefix(Some("IWARP".to_owned())).with_syslog_identifier("iwarpd".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Memory {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn lines_to_the_journal_have_its_priorities_and_no_time() {
        let memory = Memory::default();
        let format = || tracing_subscriber::fmt::layer().with_writer(memory.clone()).with_ansi(false);
        let log = tracing_subscriber::registry().with(super::super::lines(format(), true));
        tracing::subscriber::with_default(log, || {
            tracing::error!("down");
            tracing::warn!(port = "p0", "two\nlines");
            tracing::info!("ready");
            tracing::debug!("request");
        });
        let text = String::from_utf8(memory.0.lock().unwrap().clone()).unwrap();
        let target = module_path!();
        assert_eq!(
            text,
            format!(
                "<3>ERROR {target}: down\n<4> WARN {target}: two\n<4>lines port=\"p0\"\n<6> INFO {target}: ready\n\
                 <7>DEBUG {target}: request\n"
            )
        );
    }

    #[test]
    fn the_journal_is_recognized_by_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let name = |inode: u64| format!("{}:{inode}", stat.st_dev);
        assert!(is_named(&file, Some(&name(stat.st_ino))));
        assert!(!is_named(&file, Some(&name(stat.st_ino + 1))), "stderr was redirected");
        for other in ["", "7", ":", "a:b", "1:2:3"] {
            assert!(!is_named(&file, Some(other)), "{other:?}");
        }
        assert!(!is_named(&file, None));
    }

    #[test]
    fn every_line_of_a_report_has_a_priority() {
        assert_eq!(with_priority(Level::ERROR, "one\ntwo\n"), "<3>one\n<3>two\n");
        assert_eq!(with_priority(Level::WARN, "no end"), "<4>no end");
        assert_eq!(with_priority(Level::WARN, ""), "");
    }
}
