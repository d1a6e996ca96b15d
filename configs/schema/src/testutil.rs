//! Fuzz target of the configuration file, and its seed inputs. `configs/schema/fuzz` runs it with libFuzzer, and the
//! test `fuzz` on the committed corpus.

use crate::{Config, ConfigErrors, Nfsd, memory_plan};

/// Panics unless an arbitrary text is either a configuration whose memory plan can be computed, or has mistakes at the
/// places that the report states; and the same for the configuration of iwarp-nfsd, which has no plan.
pub fn files(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(errors) = Nfsd::parse("/nonexistent/n.toml", text) {
        reported(text, &errors);
    }
    // Files that the text names are resolved in a folder that does not exist.
    match Config::parse("/nonexistent/t.toml", text) {
        Ok(config) => {
            let plan = memory_plan(&config);
            assert!(plan.items().iter().all(|item| !item.what.is_empty()));
            assert!(
                plan.hugepages().checked_mul(2 << 20).is_some_and(|bytes| bytes >= plan.hugepage_bytes())
            );
        }
        Err(errors) => reported(text, &errors),
    }
}

/// Panics unless the report names at least one mistake, each at a line of the text.
fn reported(text: &str, errors: &ConfigErrors) {
    let mistakes = errors.mistakes();
    assert!(!mistakes.is_empty());
    let lines = text.split('\n').count();
    assert!(
        mistakes.iter().all(|mistake| (1..=lines).contains(&mistake.line) && !mistake.message.is_empty())
    );
    assert!(errors.render(false).contains("help:"));
    assert_eq!(errors.short().lines().count(), mistakes.len());
    let written = serde_json::to_value(errors).expect("mistakes can be written as JSON");
    assert_eq!(written.as_array().map(Vec::len), Some(mistakes.len()));
}

/// Returns the shipped configurations without their comments.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let names = ["af_packet", "af_xdp", "demo", "memif", "nfsd", "pcap", "pci", "reference", "tap"];
    let texts = names.map(|name| std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap());
    let bare = |text: &String| -> String {
        let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim_end());
        lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.to_owned() + "\n")
            .collect()
    };
    texts.iter().map(|text| bare(text).into_bytes()).collect()
}
