//! Random text never panics, and every mistake in it has a place and a help text.

use proptest::prelude::*;

use super::mistakes::{PORT, REGION};
use crate::Config;

fn toml_like() -> impl Strategy<Value = String> {
    let words = [
        "[memory]\n",
        "[[port]]\n",
        "[workers]\n",
        "[tcp]\n",
        "[mpa]\n",
        "[placement]\n",
        "[limits]\n",
        "[[listener]]\n",
        "[[region]]\n",
        "[control]\n",
        "driver",
        "addresses",
        "mtu",
        "cores",
        "name",
        "size",
        "access",
        "token",
        "mode",
        "service",
        "port",
        "packet_buffers",
        "hugepage_limit",
        "rx_descriptors",
        "connections_max",
        " = ",
        "\"tap\"",
        "\"ring\"",
        "\"region\"",
        "\"remote-read\"",
        "\"10.0.0.2/24\"",
        "\"fd77::2/64\"",
        "\"64M\"",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\n",
        "0",
        "-1",
        "4294967295",
        "18446744073709551615",
        "1e9",
        "0x7fffffffffffffff",
        "true",
        "\"",
        "'",
        "#",
        "é",
        ".",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..80).prop_map(|parts| parts.concat())
}

/// Generates lines for a table that are valid or almost valid.
fn lines() -> impl Strategy<Value = String> {
    let line = (toml_like(), any::<i64>(), ".{0,40}").prop_map(|(soup, number, text)| {
        let quoted = toml::Value::String(text).to_string();
        format!(
            "{PORT}mtu = {number}\nname = {quoted}\nmac = {quoted}\ngateway = {quoted}\n{REGION}token = {quoted}\n\
             allow = [{quoted}]\n[tcp]\nsend_buffer_bytes = {quoted}\nconnections_max = {number}\n{soup}"
        )
    });
    prop_oneof![line, toml_like(), "(?s).{0,200}"]
}

proptest! {
    #[test]
    fn no_text_panics_and_every_place_exists(text in lines()) {
        if let Err(errors) = Config::parse("t.toml", &text) {
            prop_assert!(!errors.mistakes().is_empty());
            let line_count = text.split('\n').count();
            for mistake in errors.mistakes() {
                prop_assert!((1..=line_count).contains(&mistake.line));
            }
            prop_assert!(errors.render(false).contains("help:"));
            prop_assert_eq!(errors.short().lines().count(), errors.mistakes().len());
        }
    }
}
