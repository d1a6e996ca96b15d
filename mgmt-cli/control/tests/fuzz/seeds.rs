//! The inputs that the corpus begins with.

/// A request to each method, and lines that are none.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let params = |method: &str| match method {
        "region.register" => {
            concat!(
                r#"{"name":"lab","bytes":67108864,"access":["remote-read","remote-write","remote-atomic"],"#,
                r#""token_hex":"6f70656e","allow":["10.77.0.0/24","fd77::/64","192.0.2.1"]}"#
            )
        }
        "region.show" | "region.attach" => r#"{"name":"lab"}"#,
        "region.deregister" => r#"{"name":"lab","force":true}"#,
        "port.show" => r#"{"name":"p0"}"#,
        "conn.show" => r#"{"id":17592186044417}"#,
        "port.stats" => r#"{"name":"p0"}"#,
        _ => "{}",
    };
    let request = |method: &&str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{}}}"#, params(method))
    };
    let others = [
        r#"{"jsonrpc":"2.0","method":"status"}"#,
        r#"{"jsonrpc":"2.0","id":"a","method":"status","params":null}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"status"}]"#,
        r#"{"jsonrpc":"1.0","id":-1,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":1.5e300,"method":"\u202e","params":[1]}"#,
        "[[[[[[[[",
        "",
    ];
    let methods = iwarp_control::METHODS.iter().map(request);
    methods.chain(others.map(str::to_owned)).map(String::into_bytes).collect()
}
