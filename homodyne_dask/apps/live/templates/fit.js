// Fetches the sections about once a second and replaces those that changed.
const contact = document.getElementById("contact");
const live = document.getElementById("live");
const address = location.pathname.replace(/\/$/, "") + "-now";

function put(html) {
  const fresh = [...new DOMParser().parseFromString(html, "text/html").body.children];
  const old = [...live.children];
  if (fresh.map((part) => part.id).join() !== old.map((part) => part.id).join()) {
    live.replaceChildren(...fresh);
  } else {
    fresh.forEach((part, n) => { if (part.innerHTML !== old[n].innerHTML) old[n].replaceWith(part); });
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
      contact.textContent = "The program of the fit no longer answers. Last update before "
        + new Date().toLocaleTimeString() + ".";
    }
  }
  setTimeout(look, document.hidden ? 5000 : 800);
}
look();
