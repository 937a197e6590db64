"""Where units are executed. An executor says how many it takes at once, takes them, and answers.

| room | what it holds |
|---|---|
| `base` | what every executor is |
| `choose`, `guarded` | the executor that a study asks for, by name or class path; and one of the user's own |
| `inline` | in this process, one after another; debuggers work, and a crash ends everything |
| `processes`, `worker`, `server` | in long-lived processes of this machine, pinned to cores or GPUs |
| `simulated` | nowhere: made-up curves on a made-up clock, to try out searches and stoppers |
"""
