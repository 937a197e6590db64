"""Where units are executed. An executor says how many it takes at once, takes them, and answers.

- `inline`: in this process, one after another; debuggers work, and a crash ends everything
- `processes`: in long-lived processes of this machine, pinned to cores or GPUs
- `simulated`: nowhere; made-up curves on a made-up clock, to try out searches and stoppers
"""
