// The colours that were chosen, before the first thing is drawn: it is no module, so that the page waits for it.

try {
  document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "";
} catch { /* storage may be off; then they are the system's */ }
