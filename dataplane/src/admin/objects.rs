//! Methods about applications and their objects: `app.list`, `app.show`, `app.users`, `qp.list`, `cq.list` and
//! `mr.list`.

use iwarp_control::{
    AppListMethod, AppObjects, AppShowMethod, AppUsersMethod, CqListMethod, ErrorObject, Method,
    MrListMethod, QpListMethod, params,
};
use serde_json::Value;

use super::ControlHandler;
use super::applications::{Applications, no_such_app};
use crate::control::Reply;

/// The methods that [`ControlHandler::objects`] answers.
pub(super) const METHODS: [&str; 6] = [
    AppListMethod::NAME,
    AppShowMethod::NAME,
    AppUsersMethod::NAME,
    QpListMethod::NAME,
    CqListMethod::NAME,
    MrListMethod::NAME,
];

impl ControlHandler {
    /// Answers one of [`METHODS`]. A daemon without a verbs socket has no applications.
    ///
    /// # Errors
    /// There is no such application, or a worker does not answer.
    pub(super) async fn objects(&self, method: &str, given: Value) -> Result<Reply, ErrorObject> {
        let applications = self.applications.as_deref();
        Ok(match method {
            AppShowMethod::NAME => {
                let number = params::<AppShowMethod>(given)?.app;
                Reply::new(applications.ok_or_else(|| no_such_app(number))?.app(number).await?)
            }
            AppUsersMethod::NAME => {
                params::<AppUsersMethod>(given)?;
                Reply::new(applications.map(Applications::users).unwrap_or_default())
            }
            QpListMethod::NAME => {
                let asked = params::<QpListMethod>(given)?;
                Reply::new(match applications {
                    Some(applications) => applications.queue_pairs(asked).await?,
                    None => none_of(asked)?,
                })
            }
            CqListMethod::NAME => {
                let asked = params::<CqListMethod>(given)?;
                Reply::new(match applications {
                    Some(applications) => applications.completion_queues(asked).await?,
                    None => none_of(asked)?,
                })
            }
            MrListMethod::NAME => {
                let asked = params::<MrListMethod>(given)?;
                Reply::new(match applications {
                    Some(applications) => applications.memory_regions(asked)?,
                    None => none_of(asked)?,
                })
            }
            _ => {
                params::<AppListMethod>(given)?;
                Reply::new(match applications {
                    Some(applications) => applications.apps().await?,
                    None => Vec::new(),
                })
            }
        })
    }
}

/// Returns the objects of a daemon without applications.
fn none_of<T>(asked: AppObjects) -> Result<Vec<T>, ErrorObject> {
    asked.app.map_or_else(|| Ok(Vec::new()), |number| Err(no_such_app(number)))
}
