// Fetches the sections about once a second and replaces those that changed.
const contact = document.getElementById("contact");
const live = document.getElementById("live");
const address = location.pathname.replace(/\/$/, "") + "-now" + location.search;

function put(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").body;
  const names = [...fresh.children].map((part) => part.id);
  for (const old of [...live.children]) if (!names.includes(old.id)) old.remove();
  for (const part of [...fresh.children]) {
    const old = document.getElementById(part.id);
    if (!old) { live.append(part); continue; }
    if (old.innerHTML === part.innerHTML) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    old.replaceWith(part);
    if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
  }
}

async function look() {
  try {
    const answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (answer.ok) {
      put(await answer.text());
      contact.textContent = "";
    }
  } catch {
    if (!contact.textContent) {
      contact.textContent = "The scheduler no longer answers. Last update before "
        + new Date().toLocaleTimeString() + ".";
    }
  }
  setTimeout(look, document.hidden ? 5000 : 800);
}
look();
