//! Fuzz target of the lines on the control socket, and its seed inputs. `mgmt-cli/control/fuzz` runs it with
//! libFuzzer, and the test `fuzz` on the committed corpus.

use crate::{
    AppListMethod, AppShowMethod, AppUsersMethod, BadLine, CaptureMethod, ConnListMethod, ConnShowMethod,
    CqListMethod, DrainMethod, DropsMethod, ErrorObject, Hello, Id, LogLevelMethod, Method, MonitorMethod,
    MrListMethod, PortListMethod, PortShowMethod, PortStatsMethod, QpListMethod, RegionAttachMethod,
    RegionDeregisterMethod, RegionListMethod, RegionRegisterMethod, RegionShowMethod, ReloadMethod, Request,
    Response, StatsMethod, StatusMethod, params,
};
use serde_json::{Value, to_value};

/// Panics unless an arbitrary line either is refused in one line of JSON, or keeps its meaning when it is written and
/// read again.
pub fn requests(data: &[u8]) {
    match Request::from_line(data) {
        Ok(request) => {
            let line = request.to_line().expect("a request can be written");
            assert_eq!(Request::from_line(&line), Ok(request.clone()), "it is read as it was written");
            every_method(&request);
        }
        Err(BadLine::NotJson(error)) => refused(None, error),
        Err(BadLine::NotARequest(id, error)) => refused(id, error),
    }
}

/// Decodes the parameters of a request as those of every method.
fn every_method(request: &Request) {
    read::<Hello>(request);
    read::<StatusMethod>(request);
    read::<RegionListMethod>(request);
    read::<RegionShowMethod>(request);
    read::<RegionDeregisterMethod>(request);
    read::<RegionAttachMethod>(request);
    read::<ConnListMethod>(request);
    read::<ConnShowMethod>(request);
    read::<AppListMethod>(request);
    read::<AppShowMethod>(request);
    read::<AppUsersMethod>(request);
    read::<QpListMethod>(request);
    read::<CqListMethod>(request);
    read::<MrListMethod>(request);
    read::<PortListMethod>(request);
    read::<PortShowMethod>(request);
    read::<PortStatsMethod>(request);
    read::<StatsMethod>(request);
    read::<DropsMethod>(request);
    read::<MonitorMethod>(request);
    read::<LogLevelMethod>(request);
    read::<CaptureMethod>(request);
    read::<ReloadMethod>(request);
    read::<DrainMethod>(request);
    if let Some(region) = read::<RegionRegisterMethod>(request) {
        assert!(region.allow.iter().all(|net| *net == net.trunc()), "no prefix has bits beyond its length");
        let token = region.token_hex.as_deref().filter(|token| token.len() > 4);
        assert!(token.is_none_or(|token| !format!("{region:?}").contains(&format!("{token:?}"))), "a secret");
    }
}

fn read<M: Method>(request: &Request) -> Option<M::Params> {
    match params::<M>(request.params.clone()) {
        Ok(read) => {
            let written = to_value(&read).expect("parameters can be written");
            let again = params::<M>(written.clone()).expect("parameters that were written can be read");
            assert_eq!(to_value(&again).expect("parameters can be written"), written);
            Some(read)
        }
        Err(error) => {
            refused(request.id.clone(), error);
            None
        }
    }
}

fn refused(id: Option<Id>, error: ErrorObject) {
    assert!(!error.message.is_empty());
    let line =
        Response::<()>::failure(id.clone(), error.clone()).to_line().expect("a refusal can be written");
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
    let response: Response<Value> = serde_json::from_slice(&line).expect("a refusal is JSON");
    assert_eq!((response.id, response.error), (id, Some(error)));
}

/// Returns a request to each method, and lines that are none.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
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
        "app.show" | "qp.list" => r#"{"app":3}"#,
        "capture" => {
            r#"{"conn":1,"filter":"tcp port 7400 not host 10.0.0.0/8 flags syn,rst","snap_bytes":128}"#
        }
        "log.level" => r#"{"level":"debug"}"#,
        "drain" => r#"{"timeout_ms":10000}"#,
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
    let methods = crate::METHODS.iter().map(request);
    methods.chain(others.map(str::to_owned)).map(String::into_bytes).collect()
}
